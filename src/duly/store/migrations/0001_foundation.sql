-- The whole shape of Duly's store. Applied by store/migrate.py, which has created the schema and holds the lock.
--
-- One job's life through the tables:
--   jobs ──fire──▶ runs ──claim──▶ claims ──complete──▶ history
--                   ▲                │  └────bury──────▶ history + dead_letters
--                   └── retry, rescue┘

-- What this store is. The shard count is fixed when the store is made: a job's shard follows from its id.
create table duly.store (
    singleton   boolean primary key default true check (singleton),
    store_id    uuid not null default gen_random_uuid(),
    shard_count smallint not null check (shard_count between 1 and 4096),
    created_at  timestamptz not null default clock_timestamp()
);

-- The one clock. Tests stop or move it; in production the row stays (null, 0) and `duly doctor` says so if it does not.
create table duly.clock (
    singleton boolean primary key default true check (singleton),
    frozen_at timestamptz,
    shift     interval not null default interval '0'
);
insert into duly.clock default values;

-- Never now(): that is frozen at transaction start, so a lease written after a lock wait could be born expired.
create function duly.now() returns timestamptz
language sql volatile
as $$ select coalesce(frozen_at, clock_timestamp() + shift) from duly.clock $$;

-- A fencing token: milliseconds first, so that a later claim of the same run has a greater token and a downstream can
-- refuse the smaller one; random behind, so that a database that was promoted and forgot some claims never gives the
-- same token again.
create function duly.new_token() returns uuid
language sql volatile
as $$
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
$$;

-- A job id ends in random bits, so its last two bytes spread jobs evenly. The same sum is in duly/store/ids.py.
create function duly.shard_of(job_id uuid, shard_count integer) returns smallint
language sql immutable
as $$ select (((get_byte(uuid_send(job_id), 14) << 8) | get_byte(uuid_send(job_id), 15)) % shard_count)::smallint $$;

create table duly.jobs (
    job_id        uuid primary key,
    next_run_at   timestamptz,          -- null: paused, ended, or a one-off that has fired
    last_run_at   timestamptz,          -- the latest occurrence that became a run: what overlap looks at
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
    fingerprint   bytea,                -- of the content, where there is a dedupe_key to compare it by
    status_reason text
) with (
    -- A fire rewrites the row; room on the page keeps the new version near and the heap from growing.
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1
);
create index jobs_due on duly.jobs (shard, next_run_at) where next_run_at is not null;
create unique index jobs_dedupe on duly.jobs (tenant, dedupe_key) where dedupe_key is not null;

-- Runs that wait for a worker. run_at is when it may start: in the future for a retry, 'infinity' for one that waits
-- for an earlier run of its job. The claim looks at each (queue, priority) lane by itself, so a million rows that may
-- not start yet lie behind the lane's head and never in the path of another lane.
create table duly.runs (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    run_at       timestamptz not null,
    fired_at     timestamptz not null,
    epoch        integer,               -- of the term that fired it; null: the submitter itself
    shard        smallint not null,
    priority     smallint not null,
    attempt      smallint not null default 0,
    flags        smallint not null default 0,
    state        text not null check (state in ('queued', 'retrying', 'waiting')),
    queue        text not null,
    primary key (job_id, scheduled_at)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0
);
create index runs_lane on duly.runs (queue, priority, run_at);
create index runs_waiting on duly.runs (job_id, scheduled_at) where state = 'waiting';

-- A claim is one row for a whole batch: it is the lease, and its id is the fencing token. The arrays run in parallel;
-- a run is named by (claim, ordinal), so a completion cannot even speak of a run that the claim does not hold.
create table duly.claims (
    claim_id      uuid primary key,
    worker_id     uuid not null,
    claimed_at    timestamptz not null,
    lease_until   timestamptz not null,
    job_ids       uuid[] not null,
    scheduled_ats timestamptz[] not null,
    fired_ats     timestamptz[] not null,
    epochs        integer[] not null,
    attempts      smallint[] not null,
    flags         smallint[] not null,
    released      integer[] not null default '{}', -- ordinals that went back to runs; the rest is held or in history
    cancelled     integer[] not null default '{}'  -- ordinals whose cancellation was asked for
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0
);
create index claims_lease on duly.claims (lease_until);
create index claims_worker on duly.claims (worker_id);
-- Ids and times do not compress; trying costs more than the bytes.
alter table duly.claims
    alter column job_ids set storage external, alter column scheduled_ats set storage external,
    alter column fired_ats set storage external, alter column epochs set storage external,
    alter column attempts set storage external, alter column flags set storage external;

-- Ended runs, one row per occurrence: the primary key is the database's own word that an occurrence has one outcome.
create table duly.history (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    fired_at     timestamptz,
    started_at   timestamptz,
    finished_at  timestamptz not null,
    claim_id     uuid,                  -- the token that was accepted
    worker_id    uuid,
    epoch        integer,
    attempt      smallint not null,
    flags        smallint not null default 0,
    status       text not null check (status in ('succeeded', 'dead', 'cancelled', 'skipped', 'missed')),
    result       jsonb,
    error        jsonb,
    note         jsonb,                 -- why it was skipped, missed or cancelled
    primary key (job_id, scheduled_at)
) partition by range (scheduled_at);
create index history_finished on duly.history (finished_at);
-- Whatever is older than the partitions made ahead: a one-off submitted for last year, a long catch-up.
create table duly.history_default partition of duly.history default;

-- Attempts that did not end well, each with its error. A run that succeeds at once leaves no row here.
create table duly.attempts (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    attempt      smallint not null,
    claim_id     uuid not null,
    worker_id    uuid not null,
    started_at   timestamptz,
    finished_at  timestamptz not null,
    error        jsonb not null,
    primary key (job_id, scheduled_at, attempt, claim_id)
) partition by range (scheduled_at);
create table duly.attempts_default partition of duly.attempts default;

-- `ended` says that no more fires are planned. Whether the last run is over is not written here, because that would
-- be one more row version per run on the hottest path; readers ask: it is while a run of the job lives.
create view duly.job_status as
select j.*,
    case
        when j.status <> 'ended' then j.status
        when exists (select from duly.history h where h.job_id = j.job_id and h.scheduled_at = j.last_run_at)
            then 'completed'
        when exists (select from duly.runs r where r.job_id = j.job_id)
            or j.job_id in (select unnest(c.job_ids) from duly.claims c) then 'active'
        else 'completed'
    end as shown_status
from duly.jobs j;

-- One partition a day for history and attempts. Attached, not created in place: attaching takes the weaker lock.
create function duly.ensure_partitions(first_day date, last_day date) returns integer
language plpgsql
as $$
declare
    parent text;
    day date;
    partition text;
    made integer := 0;
begin
    foreach parent in array array['history', 'attempts'] loop
        for day in select generate_series(first_day, last_day, interval '1 day')::date loop
            partition := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
            if to_regclass('duly.' || partition) is null then
                execute format('create table duly.%I (like duly.%I including defaults including constraints)',
                    partition, parent);
                execute format('alter table duly.%I attach partition duly.%I for values from (%L) to (%L)',
                    parent, partition, day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end
$$;

-- Runs that no retry will mend, whole: they outlive their job's row and the history's retention.
create table duly.dead_letters (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    buried_at    timestamptz not null,
    attempt      smallint not null,
    tenant       text not null,
    name         text not null,
    queue        text not null,
    handler      text not null,
    target       jsonb,
    payload      jsonb not null,
    payload_ref  text,
    error        jsonb not null,
    attempts     jsonb not null,
    primary key (job_id, scheduled_at)
);
create index dead_letters_buried on duly.dead_letters (buried_at);

-- Every process that takes part. Its id is made at process start: a restarted worker never inherits old runs.
create table duly.nodes (
    node_id     uuid primary key,
    kind        text not null check (kind in ('scheduler', 'worker')),
    name        text not null,
    version     text not null,
    started_at  timestamptz not null,
    lease_until timestamptz not null,
    stopped_at  timestamptz,
    info        jsonb not null default '{}'
);
create index nodes_lease on duly.nodes (lease_until);

-- A shard's term: who leads it and under which epoch. A fire locks this row and compares the epoch.
create table duly.shards (
    shard   smallint primary key,
    epoch   integer not null default 0,
    node_id uuid,
    since   timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- Every term there ever was, so that a run's epoch still names its node.
create table duly.terms (
    shard      smallint not null,
    epoch      integer not null,
    node_id    uuid not null,
    started_at timestamptz not null,
    primary key (shard, epoch)
);

-- The Python tasks that workers have offered, so that a submit can refuse a misspelt one.
create table duly.handlers (
    name    text primary key,
    seen_at timestamptz not null
);
