-- What a tenant may do. Null: anything that the role of its keys allows.
alter table duly.tenants
    add column tasks    text[],   -- the tasks it may submit
    add column queues   text[],   -- the queues it may use
    add column commands boolean;  -- whether it may submit commands at all

-- Two roles more: `operator` may submit commands, which `write` could until now; `monitor` is of no tenant (tenant '').
alter table duly.api_keys
    drop constraint api_keys_role_check,
    add constraint api_keys_role_check check (role in ('read', 'write', 'operator', 'admin', 'monitor')),
    add constraint api_keys_tenant_check check ((tenant = '') = (role = 'monitor'));
