-- Restores jobs to the state before occurrences were fired ahead of time (see jobs/retract.sql).
--   $1 job_ids  $2 the first such occurrence of each  $3 how many
-- A job parked meanwhile stays parked. The leader is told: unless a later statement of this transaction plans
-- otherwise, the jobs are due as before.
with back as (
    update duly.jobs j
    set next_run_at = case when j.status in ('active', 'ended') then taken.first_at else j.next_run_at end,
        run_count = j.run_count - taken.count,
        status = case when j.status = 'ended' then 'active' else j.status end,
        -- The latest remaining run, in any table: if the clock has gone back, the job continues after it.
        last_run_at = (
            select max(run.at)
            from (
                select max(h.scheduled_at) as at
                from duly.history h
                where h.job_id = j.job_id and h.status not in ('missed', 'skipped')
                union all
                select max(r.scheduled_at) from duly.runs r where r.job_id = j.job_id
                union all
                select max(held.scheduled_at) from duly.held_runs held where held.job_id = j.job_id
            ) run
        )
    from unnest($1::uuid[], $2::timestamptz[], $3::int[]) as taken (job_id, first_at, count)
    where j.job_id = taken.job_id
    returning j.job_id, j.shard, j.next_run_at
)
select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from back
