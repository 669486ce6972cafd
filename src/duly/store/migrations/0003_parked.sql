-- Jobs that stand still through no will of their own, and late runs that wait for their turn. Tables of their own and
-- not columns of duly.jobs: both are almost always empty, and an index over millions of jobs would have to be built
-- under a lock.

-- Paused by a leader that could not plan them (their zone is gone). `version` is the job's when it was parked: if
-- anybody has touched the job since, it is no longer ours to resume.
create table duly.parked (
    job_id    uuid primary key,
    version   integer not null,
    parked_at timestamptz not null
);

-- Late occurrences that the missed policy lets run but the governor not yet: all of a job's from first_at to last_at,
-- `count` of them. One row a job and outage, however many they are.
create table duly.catch_ups (
    job_id    uuid not null,
    last_at   timestamptz not null,
    first_at  timestamptz not null,
    served_at timestamptz not null,     -- whoever was served longest ago is next
    count     integer not null,
    shard     smallint not null,
    epoch     integer not null,         -- of the term that found them
    primary key (job_id, last_at)
);
create index catch_ups_turn on duly.catch_ups (served_at);

-- As before, and: what still waits for its turn keeps an ended job active.
create or replace view duly.job_status as
select j.job_id, j.next_run_at, j.last_run_at, j.created_at, j.updated_at, j.start_at, j.end_at, j.max_runs,
    j.run_count, j.version, j.shard, j.priority, j.status, j.kind, j.tenant, j.name, j.queue, j.handler, j.target,
    j.schedule, j.timezone, j.payload, j.payload_ref, j.policy, j.labels, j.dedupe_key, j.fingerprint, j.status_reason,
    case
        when j.status <> 'ended' then j.status
        when exists (select from duly.catch_ups c where c.job_id = j.job_id) then 'active'
        when exists (select from duly.history h where h.job_id = j.job_id and h.scheduled_at = j.last_run_at)
            then 'completed'
        when exists (select from duly.runs r where r.job_id = j.job_id)
            or j.job_id in (select unnest(c.job_ids) from duly.claims c) then 'active'
        else 'completed'
    end as shown_status
from duly.jobs j;
