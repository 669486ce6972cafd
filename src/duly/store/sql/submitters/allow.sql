-- Lets a PostgreSQL role submit for a tenant through duly.submit, and nothing else.   $1 role  $2 tenant  $3 commands
--   $4 who acts (`Actor.note`)
with before as materialized (
    select role, tenant, commands from duly.submitters where role = $1::name for no key update
),
allowed as materialized (
    -- After the row was read.
    select count(before.role) as known, duly.allow_submit($1::name, $2::text, $3::boolean) from before
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select duly.now(), $2::text, $4::jsonb -> 'who', 'allow', 'role', $1::name::text, null::uuid,
        case when before.role is not null then jsonb_build_object('tenant', before.tenant, 'commands', before.commands) end,
        jsonb_build_object('tenant', $2::text, 'commands', $3::boolean), $4::jsonb ->> 'reason'
    from allowed
    left join before on true
    where (before.tenant, before.commands) is distinct from ($2::text, $3::boolean)
)
-- end audited
select from allowed
