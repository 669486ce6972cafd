-- Moves plans to where the new rules of their zones put them.
--   $1 job_ids  $2 versions of their rows when they were read  $3 next_run_at they were read with  $4 the new one
-- A job that is locked, or was changed or fired meanwhile, is not returned. No epoch is compared: every node computes
-- the same result, and the second one finds another row.
with able as materialized (
    select f.job_id, f.expected, f.next_run_at
    from unnest($1::uuid[], $2::xid[], $3::timestamptz[], $4::timestamptz[]) as f (job_id, version, expected, next_run_at)
    cross join lateral (
        select from duly.jobs
        where job_id = f.job_id and xmin = f.version and next_run_at = f.expected
        limit 1
        for no key update skip locked
    ) j
),
moved as (
    update duly.jobs j
    set next_run_at = able.next_run_at, updated_at = duly.now(), version = j.version + 1
    from able
    where j.job_id = able.job_id and j.job_id = any (array(select job_id from able))
    returning j.job_id, j.shard, j.next_run_at, j.updated_at, able.expected
),
noted as (
    insert into duly.job_changes (job_id, at, what, detail)
    select job_id, updated_at, 'rezoned',
        jsonb_build_object('reason', 'time-zone data ' || rules.version, 'next_run_at', expected, 'moved_to', next_run_at)
    from moved
    cross join (select version from duly.zone_rules order by noted_at desc, version desc limit 1) rules
),
announced as (
    select duly.announce_due(array_agg(shard), array_agg(job_id), array_agg(next_run_at)) from moved
)
select moved.job_id from moved cross join announced
