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
    'redefined', 'changed', 'cancelled', 'parked', 'unparked', 'triggered', 'redriven')) not valid;

-- Dead letters are listed by tenant, newest first, and found by their job.
create index dead_letters_tenant on duly.dead_letters (tenant, buried_at desc, job_id, scheduled_at);
