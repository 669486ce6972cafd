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

-- Whether a name is one of these; null: any is. A name that ends in * stands for all that begin so.
create function duly.is_among(asked text, names text[]) returns boolean
language sql immutable
begin atomic
    select names is null or exists (
        select from unnest(names) as one (name)
        where asked = one.name or right(one.name, 1) = '*' and starts_with(asked, left(one.name, -1))
    );
end;

-- Refuse what a tenant is not to submit. For duly.submit; the same is in duly/operations/rights.py.
create function duly.check_bounds(of_tenant text, task text, is_target boolean, of_queue text) returns void
language plpgsql stable
as $$
declare
    may record;
begin
    select t.tasks, t.queues, t.commands into may from duly.tenants t where t.tenant = of_tenant;
    if is_target and task = 'command' and not may.commands then
        raise exception using errcode = 'insufficient_privilege', column = 'handler',
            message = format('duly.submit: handler: tenant %L may not submit commands', of_tenant);
    elsif not is_target and not duly.is_among(task, may.tasks) then
        raise exception using errcode = 'insufficient_privilege', column = 'handler',
            message = format('duly.submit: handler: tenant %L may not submit task %L', of_tenant, left(task, 100));
    elsif not duly.is_among(of_queue, may.queues) then
        raise exception using errcode = 'insufficient_privilege', column = 'queue',
            message = format('duly.submit: queue: tenant %L may not use queue %L', of_tenant, left(of_queue, 100));
    end if;
end
$$;
