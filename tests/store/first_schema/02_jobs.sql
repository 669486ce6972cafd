-- Jobs, the changes made to them, and jobs that Duly itself has paused.

create table duly.jobs (
    job_id        uuid primary key,
    next_run_at   timestamptz,          -- null: paused, ended, or a one-off that has fired
    last_run_at   timestamptz,          -- the latest occurrence that became a run; overlap is decided by it
    created_at    timestamptz not null,
    updated_at    timestamptz not null,
    start_at      timestamptz,
    end_at        timestamptz,
    max_runs      integer,
    run_count     integer not null default 0,
    version       integer not null default 1,
    shard         smallint not null,
    priority      smallint not null check (priority between 0 and 9),
    status        text not null check (status in ('active', 'paused', 'ended', 'cancelled')),
    kind          text not null check (kind in ('once', 'cron', 'interval', 'rrule')),
    tenant        text not null,
    name          text not null,
    queue         text not null,
    handler       text not null,        -- a Python task's name, or 'http' / 'command' when target is set
    target        jsonb,
    schedule      text not null,
    timezone      text not null,
    payload       jsonb not null,
    payload_ref   text,
    policy        jsonb,                -- only what differs from the defaults; null when nothing does
    labels        jsonb,
    dedupe_key    text,
    fingerprint   bytea,                -- a hash of the content; only where there is a dedupe_key to compare it by
    status_reason text,
    -- The last run in the job's line, where that is a run out of schedule order (triggered, redriven, released late)
    -- and last_run_at does not name it. Overlap is decided by both columns. Null for almost every job.
    extra_at      timestamptz,
    -- A timestamp that Python cannot represent makes a whole page of jobs unreadable, and a queue name too long for a
    -- notification fails every statement that announces it. No interface stores either; this stops manual writes.
    constraint jobs_representable check (
        greatest(created_at, updated_at, next_run_at, last_run_at, extra_at, start_at, end_at) < '9999-12-31 23:59:59+00'
        and least(created_at, updated_at, next_run_at, last_run_at, extra_at, start_at, end_at) > '1800-01-01 00:00:00+00'
        and octet_length(queue) between 1 and 400
    )
) with (
    -- A fire rewrites the row; free space on the page keeps the new version near and the heap from growing.
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1
);
create index jobs_due on duly.jobs (shard, next_run_at) where next_run_at is not null;
create unique index jobs_dedupe on duly.jobs (tenant, dedupe_key) where dedupe_key is not null;

-- Lists cost what their page costs, however many jobs have ended and however many other tenants have. A fire moves a
-- job's row and so costs an entry in each index that contains the row: one more index over all active jobs, by tenant
-- or by name, cost a fire a tenth to a third of PostgreSQL's time (measured). So there is no index by name, and none
-- over the active jobs of the default tenant. Those lists walk over a bounded number of rows, and their page may end
-- early.
create index jobs_by_status on duly.jobs (tenant, status, job_id) where tenant <> 'default';
-- Paused and cancelled jobs never fire, so for the default tenant this index costs no fire anything.
create index jobs_set_aside on duly.jobs (status, job_id) where tenant = 'default' and status in ('paused', 'cancelled');
-- Only jobs with labels pay for this index, and a list by label skips all others.
create index jobs_labelled on duly.jobs (tenant, job_id) where labels is not null;

-- A job id ends in random bits, so its last two bytes spread jobs evenly. The same sum is in duly/store/ids.py.
create function duly.shard_of(job_id uuid, shard_count integer) returns smallint
language sql immutable
begin atomic
    select (((get_byte(uuid_send(job_id), 14) << 8) | get_byte(uuid_send(job_id), 15)) % shard_count)::smallint;
end;

-- A whole number of a stored policy, whatever a manual write put there: no statement over many jobs may fail for one of
-- them.
create function duly.whole(policy jsonb, field text, otherwise integer) returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case jsonb_typeof(policy -> field)
        when 'number' then least(greatest((policy ->> field)::numeric, 0::numeric), 1000000000::numeric)::integer
        else otherwise
    end
$$;

-- A job's overlap policy. Its default is said here and in duly.model.Policy alone.
create function duly.overlap(policy jsonb) returns text
language sql immutable parallel safe
begin atomic
    select coalesce(policy ->> 'overlap', 'skip');
end;

-- Tells the leaders which jobs fall due soon. A leader holds only the next minutes in memory (`horizon_seconds`), so
-- only jobs due within 15 minutes are announced. Up to 50 jobs are named, as `shard:job_id:due_us`; for more, `*` makes
-- the leaders read again. The scheduler's loader reads these notifications. jobs/submit.sql and store/copying.py
-- announce new jobs by themselves, with the range of their ids. They do not call this function, because they also run
-- on callers' connections, whose role would need another grant, and because an array of all ids would slow down bulk
-- submits.
create function duly.announce_due(shards smallint[], job_ids uuid[], dues timestamptz[]) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select pg_notify('duly_due', soon.jobs)
    from (
        select case when count(*) > 50 then '*' else string_agg(
                concat(job.shard, ':', job.job_id, ':', (extract(epoch from job.due) * 1e6)::bigint), ','
            ) end as jobs
        from unnest(shards, job_ids, dues) as job (shard, job_id, due)
        where job.due <= duly.now() + interval '15 minutes'
    ) soon
    where soon.jobs is not null
$$;

-- The changes made to a job, so that `duly explain` can answer why it did not run at nine. Written in the same
-- statement as the change itself. A plain submit writes no row: a job's creation is in its own row, and a million
-- one-offs must not cost a million rows here.
create table duly.job_changes (
    -- Orders two changes of the same microsecond.
    change_id bigint generated always as identity primary key,
    job_id    uuid not null,
    at        timestamptz not null,
    what      text not null check (what in ('submitted', 'paused', 'resumed', 'redefined', 'changed', 'cancelled',
        'parked', 'unparked', 'triggered', 'redriven', 'repaired', 'rezoned')),
    -- reason: why. next_run_at: the job's next occurrence before the change (after it, for a resume). before: the
    -- schedule that was in force until then, where this changed it.
    detail    jsonb
);
create index job_changes_job on duly.job_changes (job_id, at);

-- Jobs that a leader has paused: it could not plan them (their zone is gone), or could not fire them and tries again at
-- `retry_at`, later each time (`tries`). `version` is the job's when it was parked: a job that was changed since is no
-- longer Duly's to resume. A table of its own and not columns of duly.jobs: it is almost always empty.
create table duly.parked (
    job_id    uuid primary key,
    version   integer not null,
    parked_at timestamptz not null,
    retry_at  timestamptz,
    tries     integer not null default 0
);
