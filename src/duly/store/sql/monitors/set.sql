-- Makes a monitor, or gives it this definition. None is made beyond the limit.
--   $1 tenant  $2 slug  $3 description  $4 schedule  $5 kind  $6 timezone  $7 grace  $8 longest runtime
--   $9 token  $10 whether an existing one gets this token  $11 limit
-- What was late by the old schedule is not late by the new one: the time before counts no more.
insert into duly.monitors as m (
    tenant, slug, description, schedule, kind, timezone, grace_seconds, max_runtime_seconds, token, created_at,
    updated_at, watched_from, look_at
)
select $1, $2, $3, $4, $5, $6, $7, $8, $9, clock.now, clock.now, clock.now, clock.now
from (select duly.now() as now) clock
where exists (select from duly.monitors e where e.tenant = $1 and e.slug = $2)
    or (select count(*) from duly.monitors e where e.tenant = $1) < $11
on conflict (tenant, slug) do update
set description = excluded.description,
    schedule = excluded.schedule,
    kind = excluded.kind,
    timezone = excluded.timezone,
    grace_seconds = excluded.grace_seconds,
    max_runtime_seconds = excluded.max_runtime_seconds,
    token = case when $10 then excluded.token else m.token end,
    watched_from = case
        when (m.schedule, m.timezone) = (excluded.schedule, excluded.timezone) then m.watched_from
        else excluded.watched_from
    end,
    updated_at = excluded.updated_at,
    look_at = least(m.look_at, excluded.look_at),
    version = m.version + 1
returning tenant, slug, description, schedule, kind, timezone, grace_seconds, max_runtime_seconds, created_at, updated_at,
    watched_from, last_start_at, last_success_at, last_failure_at, failure, starts, pings,
    version = 1 as created, (select count(pg_notify('duly_monitors', '')::text)) as told
