-- What a tenant may do. Null: anything that the role of its keys allows.
alter table duly.tenants
    add column tasks    text[],   -- the tasks it may submit
    add column queues   text[],   -- the queues it may use
    add column commands boolean;  -- whether it may submit commands at all
