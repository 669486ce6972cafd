-- Let the first waiting run of a job go when nothing of that job is unfinished before it. Completion does this itself;
-- this catches the run that began to wait in the very moment the one before it ended.
--   $1 limit
with first as materialized (
    select distinct on (w.job_id) w.job_id, w.scheduled_at
    from duly.runs w
    where w.state = 'waiting'
    order by w.job_id, w.scheduled_at
),
free as (
    select f.job_id, f.scheduled_at
    from first f
    where not exists (select from duly.runs r where r.job_id = f.job_id and r.state <> 'waiting')
        and f.job_id not in (
            select held.job_id
            from duly.claims c
            cross join unnest(c.job_ids, c.scheduled_ats) with ordinality as held (job_id, scheduled_at, ordinal)
            where not (held.ordinal = any (c.released))
                and not exists (
                    select from duly.history h where h.job_id = held.job_id and h.scheduled_at = held.scheduled_at
                )
        )
    limit $1
),
freed as (
    update duly.runs r
    set state = 'queued', run_at = duly.now()
    from free
    where r.job_id = free.job_id and r.scheduled_at = free.scheduled_at and r.state = 'waiting'
    returning r.queue
)
select (select count(*) from freed) as freed,
    (select count(pg_notify('duly_work', queue)::text) from (select distinct queue from freed) q) as told
