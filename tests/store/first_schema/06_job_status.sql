-- Facts about a job that are derived from several tables instead of being stored.

-- `ended` says that no more fires are planned. Whether the last run is over is not stored, because that would be one
-- more row version per run on the hottest path. Readers derive it: an ended job is active while it has a run, a claimed
-- run, a run out of schedule order, or late occurrences to come.
create view duly.job_status as
select j.job_id, j.shard, j.tenant, j.name, j.handler, j.target, j.payload, j.payload_ref, j.kind, j.schedule,
    j.timezone, j.start_at, j.end_at, j.max_runs, j.queue, j.priority, j.policy, j.dedupe_key, j.labels, j.status,
    j.status_reason, j.next_run_at, j.last_run_at, j.run_count, j.created_at, j.updated_at, j.version, j.fingerprint,
    case
        when j.status <> 'ended' then j.status
        when exists (select from duly.catch_ups c where c.job_id = j.job_id) then 'active'
        when duly.has_ended(j.job_id, j.last_run_at)
            and (j.extra_at is null or duly.has_ended(j.job_id, j.extra_at)) then 'completed'
        when exists (select from duly.runs r where r.job_id = j.job_id)
            or j.job_id in (select unnest(c.job_ids) from duly.live_claims c) then 'active'
        else 'completed'
    end as shown_status
from duly.jobs j;

-- The latest occurrence of a job that has been fired, skipped, missed or put off. A new plan continues after it, even
-- where the clock has gone back to before it. A week back is enough: only times still to come by today's clock matter,
-- and a row stands for a span that began earlier only if no scheduler was running for that long.
create function duly.dealt_with_until(job uuid) returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select max(one.at)
    from (
        select greatest(last_run_at, extra_at) as at from duly.jobs where job_id = $1
        union all
        select max(scheduled_at) from duly.runs where job_id = $1
        union all
        select max(last_at) from duly.catch_ups where job_id = $1
        union all
        select max(greatest(ended.scheduled_at, (ended.note ->> 'last')::timestamptz))
        from (
            select scheduled_at, note
            from duly.history
            where job_id = $1 and scheduled_at > duly.now() - interval '7 days'
            order by scheduled_at desc
            limit 100
        ) ended
    ) one
$$;
