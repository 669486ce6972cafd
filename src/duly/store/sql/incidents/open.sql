-- Opens incidents that are not open yet, and returns those that it opened.
--   parallel arrays: $1 ids  $2 tenants  $3 jobs (null: a monitor's)  $4 monitors (null: a job's)  $5 names  $6 kinds
--   $7 causes  $8 messages  $9 scheduled_at
-- None is opened in a maintenance window: what is still wrong when it ends is opened then. The unique index makes a second
-- leader, or the same statement sent again, open nothing.
insert into duly.incidents (
    incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at, opened_at
)
select new.incident_id, new.tenant, new.job_id, new.monitor, new.name, new.kind, new.cause, new.message, new.scheduled_at,
    duly.now()
from unnest(
    $1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[]
) as new (incident_id, tenant, job_id, monitor, name, kind, cause, message, scheduled_at)
where not exists (
    select from duly.maintenance_windows w
    where w.tenant = new.tenant and w.ends_at > duly.now() and w.starts_at <= duly.now()
        and (w.job_id is null or w.job_id = new.job_id)
)
order by new.tenant, new.job_id, new.monitor, new.kind
on conflict do nothing
returning incident_id
