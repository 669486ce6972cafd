-- The store itself: its identity, its clock and its settings.
--
-- These files are Duly's schema, in the order of their numbers. store/migrate.py applies them as one migration,
-- 0001_baseline, and has set `search_path = pg_catalog, pg_temp`: views and `begin atomic` bodies stay bound to
-- PostgreSQL's own functions.
--
-- One job's life through the tables:
--   jobs ──fire──▶ runs ──claim──▶ claims ──complete──▶ history
--                   ▲                │  └────bury──────▶ history + dead_letters
--                   └── retry, rescue┘
--
-- Functions come in two kinds. A hot one has a `begin atomic` body: its names are resolved when it is created, so no
-- caller's search_path can redirect it, and PostgreSQL inlines it. Every other one has `set search_path = pg_catalog,
-- pg_temp`. Naming pg_temp puts it last; otherwise a caller's temporary tables would come first.

-- The shard count is fixed when the store is made: a job's shard follows from its id.
create table duly.store (
    singleton         boolean primary key default true check (singleton),
    store_id          uuid not null default gen_random_uuid(),
    shard_count       smallint not null check (shard_count between 1 and 4096),
    created_at        timestamptz not null default clock_timestamp(),
    -- Signs the calls of HTTP targets where no secret is configured. Two random UUIDs are 30 random bytes.
    webhook_secret    bytea not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    -- Settings of the Python side that duly.submit obeys too. The scheduler that does the upkeep writes them when it
    -- starts; null: no scheduler has written them yet, and the settings' own defaults apply.
    tenant_max_jobs   bigint,
    payload_max_bytes bigint
);

-- The one clock. Tests stop or move it; in production frozen_at stays null and shift 0, and `duly doctor` warns
-- otherwise.
create table duly.clock (
    singleton  boolean primary key default true check (singleton),
    frozen_at  timestamptz,
    shift      interval not null default interval '0',
    -- The distance of claim tokens ahead of the clock. It grows when the clock has gone back: see duly.heed_tokens.
    token_lead interval not null default interval '0'
);
insert into duly.clock default values;

-- Not PostgreSQL's now(): that is fixed at transaction start, so a lease written after a lock wait could be born
-- expired.
create function duly.now() returns timestamptz
language sql volatile
begin atomic
    select coalesce(frozen_at, clock_timestamp() + shift) from duly.clock;
end;

-- A version-7 UUID: milliseconds first, random bits behind.
create function duly.new_job_id(moment timestamptz) returns uuid
language sql volatile
begin atomic
    select (lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0')
        || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;
end;
