-- Runs that wait for a worker, and late occurrences that wait to become runs.

-- The bits of `flags` that statements read or set; duly.states.RunFlag explains them all.
create function duly.is_missed(flags smallint) returns boolean
language sql immutable parallel safe
begin atomic
    select flags::integer & 2 = 2;
end;

create function duly.is_serial(flags smallint) returns boolean
language sql immutable parallel safe
begin atomic
    select flags::integer & 8 = 8;
end;

create function duly.as_serial(flags smallint) returns smallint
language sql immutable parallel safe
begin atomic
    select flags | 8::smallint;
end;

create function duly.is_triggered(flags smallint) returns boolean
language sql immutable parallel safe
begin atomic
    select flags::integer & 16 = 16;
end;

create function duly.as_cancelled(flags smallint) returns smallint
language sql immutable parallel safe
begin atomic
    select flags | 32::smallint;
end;

-- run_at is when a run may start: in the future for a retry, 'infinity' for one that waits for an earlier run of its
-- job. A claim reads each (queue, priority) lane by itself, so a million rows that may not start yet lie behind the
-- lane's head and never in the way of another lane.
create table duly.runs (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    run_at       timestamptz not null,
    fired_at     timestamptz not null,
    epoch        integer,               -- of the term that fired it; null: the submitter itself
    shard        smallint not null,
    priority     smallint not null,
    attempt      smallint not null default 0,
    flags        smallint not null default 0, -- duly.states.RunFlag
    state        text not null check (state in ('queued', 'retrying', 'waiting')),
    queue        text not null,
    primary key (job_id, scheduled_at)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0
);
create index runs_lane on duly.runs (queue, priority, run_at);
create index runs_waiting on duly.runs (job_id, scheduled_at) where state = 'waiting';
-- Dashboards ask again and again how many runs wait for their retry. Without this index, a million queued runs are read
-- to find that there is none. Only a run that is retried pays for it.
create index runs_retrying on duly.runs (job_id, scheduled_at) where state = 'retrying';
-- The end of each run in a line asks whether the job has another queued run. In a line of 100,000 that meant reading
-- 100,000 runs. This index has only the queued runs that release the next one (serial); ordinary runs do not pay for
-- it. Its condition is duly.is_serial written out: a function there would need a grant for every role that inserts
-- runs.
create index runs_serial on duly.runs (job_id, scheduled_at) where state = 'queued' and flags & 8 = 8;

-- The flag to add to a run that comes back to the queue: while others of its job wait, it has to release the next one.
create function duly.mark_of_line(job uuid) returns smallint
language sql stable parallel safe
begin atomic
    select case
        when exists (select from duly.runs w where w.job_id = job and w.state = 'waiting') then duly.as_serial(0::smallint)
        else 0::smallint
    end;
end;

-- Late occurrences that the missed policy lets run but the governor still holds back: all of a job's from first_at to
-- last_at, `count` of them. One row per job and outage, however many they are. A table of its own and not columns of
-- duly.jobs: it is almost always empty.
create table duly.catch_ups (
    job_id    uuid not null,
    last_at   timestamptz not null,
    first_at  timestamptz not null,
    served_at timestamptz not null,     -- the row served longest ago is next
    count     integer not null,
    shard     smallint not null,
    epoch     integer not null,         -- of the term that found them
    primary key (job_id, last_at)
);
create index catch_ups_turn on duly.catch_ups (served_at);
