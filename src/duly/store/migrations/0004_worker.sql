-- What the worker's promises need beside the queue: keys that are done, how far a handler is, and who redrove what.

-- Idempotency keys of one's own that a run has completed with. A job with the default key has no row here: its key is
-- (job, scheduled_at), and history's own primary key says that it has one outcome.
create table duly.ledger (
    tenant       text not null,
    key          text not null,
    completed_at timestamptz not null,
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    primary key (tenant, key)
);
create index ledger_completed on duly.ledger (completed_at);

-- How far running handlers say they are. Unlogged: after a crash of the database they say it again.
create unlogged table duly.progress (
    claim_id uuid not null,
    ordinal  integer not null,
    fraction real not null,
    note     text not null,
    at       timestamptz not null,
    primary key (claim_id, ordinal)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Signs the calls of HTTP targets where no secret is configured. Two random UUIDs are 30 random bytes.
alter table duly.store add column webhook_secret bytea not null
    default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());

alter table duly.job_changes drop constraint job_changes_what_check;
alter table duly.job_changes add constraint job_changes_what_check check (what in ('submitted', 'paused', 'resumed',
    'redefined', 'changed', 'cancelled', 'parked', 'unparked', 'triggered', 'redriven', 'repaired')) not valid;

-- Dead letters are listed by tenant, newest first, and found by their job.
create index dead_letters_tenant on duly.dead_letters (tenant, buried_at desc, job_id, scheduled_at);

-- Has this run ended? A function, and not a subquery, wherever a statement also locks or updates rows. When such a
-- statement waits for another's change it evaluates a part of its plan again, and in PostgreSQL 18 that spoils the choice
-- of partitions in the rest of it: the subquery then looks into the wrong day, or the server crashes (seen with 18.4).
create function duly.has_ended(job uuid, at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from duly.history h where h.job_id = job and h.scheduled_at = at);
end
$$;

-- What was tried so far, as the dead letters keep it. A function for the same reason.
create function duly.attempts_of(job uuid, at timestamptz) returns jsonb
language plpgsql stable
as $$
begin
    return coalesce((
        select jsonb_agg(jsonb_build_object('attempt', a.attempt, 'worker_id', a.worker_id,
            'started_at', a.started_at, 'finished_at', a.finished_at, 'error', a.error) order by a.finished_at, a.attempt)
        from duly.attempts a
        where a.job_id = job and a.scheduled_at = at
    ), '[]');
end
$$;

-- A run outside the schedule's order (by hand, redriven, released late) that ends last of its job's line, as far as
-- last_run_at does not say so: overlap looks at both. Null for almost every job.
alter table duly.jobs add column extra_at timestamptz;

-- As before, and: a run outside the order keeps an ended job active.
create or replace view duly.job_status as
select j.job_id, j.next_run_at, j.last_run_at, j.created_at, j.updated_at, j.start_at, j.end_at, j.max_runs,
    j.run_count, j.version, j.shard, j.priority, j.status, j.kind, j.tenant, j.name, j.queue, j.handler, j.target,
    j.schedule, j.timezone, j.payload, j.payload_ref, j.policy, j.labels, j.dedupe_key, j.fingerprint, j.status_reason,
    case
        when j.status <> 'ended' then j.status
        when exists (select from duly.catch_ups c where c.job_id = j.job_id) then 'active'
        when duly.has_ended(j.job_id, j.last_run_at)
            and (j.extra_at is null or duly.has_ended(j.job_id, j.extra_at)) then 'completed'
        when exists (select from duly.runs r where r.job_id = j.job_id)
            or j.job_id in (select unnest(c.job_ids) from duly.claims c) then 'active'
        else 'completed'
    end as shown_status
from duly.jobs j;
