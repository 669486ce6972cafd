-- Deletes dead letters for good; history still records that their runs died.
--   $1 job_ids  $2 scheduled_ats, locked by dead_letters/pick.sql
with gone as (
    delete from duly.dead_letters d
    using unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
    where d.job_id = asked.job_id and d.scheduled_at = asked.scheduled_at
    returning 1
)
select count(*) as purged from gone
