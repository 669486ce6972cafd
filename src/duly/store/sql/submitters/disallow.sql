-- Takes that right back.   $1 role  $2 who acts (`Actor.note`)
with before as materialized (
    select role, tenant, commands from duly.submitters where role = $1::name for update
),
disallowed as materialized (
    -- After the row was read.
    select count(before.role) as known, duly.disallow_submit($1::name) as was_there from before
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select duly.now(), before.tenant, $2::jsonb -> 'who', 'disallow', 'role', $1::name::text, null::uuid,
        jsonb_build_object('tenant', before.tenant, 'commands', before.commands), null::jsonb, $2::jsonb ->> 'reason'
    from disallowed
    cross join before
    where disallowed.was_there
)
-- end audited
select was_there from disallowed
