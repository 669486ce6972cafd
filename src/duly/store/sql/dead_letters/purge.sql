-- Deletes dead letters for good; history still records that their runs died.
--   $1 job_ids  $2 scheduled_ats, locked by dead_letters/pick.sql
--   $3 who acts (`Actor.note`), with the filter and the run ids
with gone as (
    delete from duly.dead_letters d
    using unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
    where d.job_id = asked.job_id and d.scheduled_at = asked.scheduled_at
    returning d.job_id
),
made as (
    select count(*) as count, case when count(distinct job_id) = 1 then (array_agg(job_id))[1] end as job_id from gone
)
-- audited:
, audited as (
    insert into duly.audit (at, tenant, who, action, kind, object, job_id, before, after, reason)
    select duly.now(), $3::jsonb ->> 'tenant', $3::jsonb -> 'who', 'purge', 'dead_letter',
        case when made.count = 1 then $3::jsonb -> 'objects' ->> 0 end, made.job_id,
        nullif(jsonb_build_object('filter', $3::jsonb -> 'filter'), '{"filter": null}'),
        jsonb_build_object('count', made.count, 'runs', $3::jsonb -> 'objects'), $3::jsonb ->> 'reason'
    from made
    where made.count > 0
)
-- end audited
select count as purged from made

