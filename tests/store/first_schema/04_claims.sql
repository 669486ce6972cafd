-- Claims: the leases of the workers, and the floor from which all claims are read.

-- A claim is one row for a whole batch of runs: it is the lease, and its id is the fencing token. The arrays run in
-- parallel; a run is named by (claim, ordinal), so a completion cannot even name a run that the claim does not hold.
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
    cancelled     integer[] not null default '{}'  -- ordinals whose cancellation was requested
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

-- The position at which reads of all claims start. Claims come and go by the hundred each second. While a report keeps
-- a snapshot, vacuum may not remove the deleted ones, and a read of all claims walks over them: half a second with
-- 100,000. Claim ids ascend with the time, so a read may start at the oldest claim that is still held.
--
-- Overlap is decided by such a read, so the floor must be right, also about claims that are not committed yet:
-- 1. `bar` is set to the current time. From then on no claim gets an id below it, whatever the clock does
--    (new_claim_id).
-- 2. Every transaction that could have taken a smaller id before that has duly.claims locked for writing. Once all of
--    those have ended (maintenance/claimers.sql), every claim that will ever be held below the bar is visible.
-- 3. `floor` rises to the bar, and `olds` lists the claims still held below it. A reader of the new floor sees that
--    list too.
create table duly.claim_floor (
    singleton boolean primary key default true check (singleton),
    bar       bigint not null default 0, -- milliseconds since 1970, as a claim's id begins
    floor     uuid not null default '00000000-0000-0000-0000-000000000000',
    olds      uuid[] not null default '{}'
) with (fillfactor = 50);
insert into duly.claim_floor default values;

-- A claim's fencing token: milliseconds, then their 4096th parts, then random bits. A later claim of the same run has a
-- greater token, so a downstream system can refuse the smaller one; a database that was promoted and forgot some claims
-- never issues the same token again. Never below the bar, and greater than every token whose runs went back to the
-- queue (duly.heed_tokens).
create function duly.new_claim_id() returns uuid
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select (lpad(to_hex(greatest(now.micros / 1000, (select bar from duly.claim_floor))), 12, '0')
        || '7' || lpad(to_hex(now.micros % 1000 * 4096 / 1000), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
    from (
        select (date_part('epoch', clock_timestamp() + shift + token_lead) * 1000000)::bigint as micros from duly.clock
    ) now
$$;

-- Makes every later token greater than these, whose runs are about to go back to the queue. The database's clock may go
-- back, at a promotion or when it is corrected; a token from the future then raises duly.clock.token_lead.
create function duly.heed_tokens(tokens uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    latest timestamptz := (
        select max(timestamptz 'epoch' + interval '1 millisecond'
            * ('x' || left(replace(token::text, '-', ''), 12))::bit(48)::bigint::double precision)
        from unnest(tokens) as token
    ) + interval '1 millisecond';
begin
    -- Almost always false; then nothing is written.
    if latest > (select clock_timestamp() + shift + token_lead from duly.clock) then
        update duly.clock
        set token_lead = latest - (clock_timestamp() + shift)
        where latest > clock_timestamp() + shift + token_lead;
    end if;
end
$$;

-- All claims, read from the floor on.
create view duly.live_claims as
select c.*
from duly.claims c
where c.claim_id >= (select floor from duly.claim_floor)
union all
select c.*
from duly.claims c
where c.claim_id = any ((select olds from duly.claim_floor)::uuid[]);

-- The runs of all claims, one row each, without those that went back to the queue. A run stays here after it has ended,
-- until its claim is closed: a statement that must know asks duly.has_ended as well. A column that a statement does not
-- use costs nothing; fired_at, epoch, attempt and flags are for few rows, because each reads its whole array again.
-- Statements that name their claims and lock them unfold the arrays themselves.
create view duly.held_runs as
select c.claim_id, c.worker_id, c.claimed_at, run.ordinal::integer as ordinal, run.job_id, run.scheduled_at,
    c.fired_ats[run.ordinal] as fired_at, c.epochs[run.ordinal] as epoch, c.attempts[run.ordinal] as attempt,
    c.flags[run.ordinal] as flags, run.ordinal = any (c.cancelled) as cancelled
from duly.live_claims c
cross join unnest(c.job_ids, c.scheduled_ats) with ordinality as run (job_id, scheduled_at, ordinal)
where not (run.ordinal = any (c.released));

-- The jobs with a run in some claim, read from the floor on: for many jobs at once, one read of all claims is cheaper
-- than a probe of each job's history. It uses the index, whatever the planner thinks: between two vacuums the table is
-- thousands of pages with a handful of rows. A sequential scan took 14 ms with 8,000 runs a second, this 2.
create function duly.claimed_jobs() returns setof uuid
language sql stable
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
    select unnest(job_ids)
    from (select job_ids from duly.claims where claim_id >= (select floor from duly.claim_floor) order by claim_id) recent
    union all
    select unnest(c.job_ids)
    from duly.claims c
    where c.claim_id = any ((select olds from duly.claim_floor)::uuid[])
$$;
