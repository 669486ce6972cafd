-- The worker's tables beside the queue: completed idempotency keys, and the progress of running handlers.

-- Custom idempotency keys that a run has completed with. A job with the default key has no row here: its key is
-- (job, scheduled_at), and history's own primary key guarantees one outcome.
create table duly.ledger (
    tenant       text not null,
    key          text not null,
    completed_at timestamptz not null,
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    primary key (tenant, key)
);
create index ledger_completed on duly.ledger (completed_at);

-- The progress that running handlers report. Unlogged: after a crash of the database they report it again.
create unlogged table duly.progress (
    claim_id uuid not null,
    ordinal  integer not null,
    fraction real not null,
    note     text not null,
    at       timestamptz not null,
    primary key (claim_id, ordinal)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
