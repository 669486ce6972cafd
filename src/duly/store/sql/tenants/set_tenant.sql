-- Sets a tenant's limits and rights. Slots are counted anew when there is a limit where there was none.
--   $1 tenant  $2 max_jobs  $3 requests_per_second  $4 tasks  $5 queues  $6 commands  $7 which of these to set
--   $8 who acts (`Actor.note`)
with before as materialized (
    select tenant, to_jsonb(t) - array['tenant', 'jobs', 'created_at', 'updated_at'] as fields
    from duly.tenants t
    where t.tenant = $1
    for no key update
),
stored as (
    insert into duly.tenants as t (tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at)
    select $1::text, $2::bigint, $3::float8, $4::text[], $5::text[], $6::boolean, clock.now, clock.now
    -- The row as it was is read before it is written.
    from (select duly.now() as now) clock left join before on true
    on conflict (tenant) do update
    set max_jobs = case when 'max_jobs' = any ($7::text[]) then excluded.max_jobs else t.max_jobs end,
        requests_per_second = case when 'requests_per_second' = any ($7::text[]) then excluded.requests_per_second
            else t.requests_per_second end,
        tasks = case when 'tasks' = any ($7::text[]) then excluded.tasks else t.tasks end,
        queues = case when 'queues' = any ($7::text[]) then excluded.queues else t.queues end,
        commands = case when 'commands' = any ($7::text[]) then excluded.commands else t.commands end,
        jobs = case when t.max_jobs is not null then t.jobs end,
        updated_at = excluded.updated_at
    returning tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select stored.updated_at, stored.tenant, $8::jsonb -> 'who', 'set', 'tenant', stored.tenant, null::uuid, differs.before,
        differs.after, $8::jsonb ->> 'reason'
    from stored
    left join before using (tenant)
    cross join lateral (
        select jsonb_object_agg(new.key, before.fields -> new.key) filter (where before.fields is not null) as before,
            jsonb_object_agg(new.key, new.value) as after
        from jsonb_each(jsonb_build_object('max_jobs', stored.max_jobs, 'requests_per_second', stored.requests_per_second,
            'tasks', stored.tasks, 'queues', stored.queues, 'commands', stored.commands)) as new
        where new.value is distinct from coalesce(before.fields -> new.key, 'null')
    ) differs
    where differs.after is not null
)
-- end audited
select tenant, max_jobs, requests_per_second, tasks, queues, commands, created_at, updated_at from stored
