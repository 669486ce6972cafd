-- Ended runs and failed attempts, in one partition per day, and dead letters.

-- One row per ended occurrence: the primary key guarantees that an occurrence has one outcome.
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
-- Holds rows older than the partitions made ahead: a one-off submitted for last year, a long catch-up.
create table duly.history_default partition of duly.history default;

-- Attempts that failed, each with its error. A run that succeeds at once leaves no row here.
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

-- Makes one day's partition of `history` or `attempts`. Returns:
--   made; there (it existed); moved (made, and rows of that day moved out of the default partition);
--   crowded (more than `most` rows to move: too many while others wait);
--   locked (a table is locked: try again later); failed: and the reason.
-- Attaching takes an exclusive lock on the default partition, which every read of history shares, and a session waiting
-- for such a lock makes all others wait behind it. A report or a backup may hold it for hours, so the wait is at most
-- 50 ms. Rows move while no row can be written to the parent: one that arrived meanwhile would be routed to the default
-- partition by the old bounds, and refused there by the new ones.
create function duly.make_partition(parent text, day date, most integer) returns text
language plpgsql
set lock_timeout = '50ms'
set search_path = pg_catalog, pg_temp
as $$
declare
    partition text := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
    rest text := parent || '_default';
    first timestamptz := day::timestamp at time zone 'UTC';
    last timestamptz := (day + 1)::timestamp at time zone 'UTC';
    found integer;
begin
    if to_regclass('duly.' || partition) is not null then
        return 'there';
    end if;
    if not pg_try_advisory_xact_lock(1685417081, 1) then
        return 'locked';
    end if;
    execute format('select count(*) from (select from duly.%I where scheduled_at >= $1 and scheduled_at < $2 limit $3) r', rest)
        into found using first, last, most + 1;
    if found > most then
        return 'crowded';
    end if;
    execute format('create table duly.%I (like duly.%I including defaults including constraints)', partition, parent);
    if found > 0 then
        execute format('lock table only duly.%I in share row exclusive mode', parent);
        execute format('lock table only duly.%I in access exclusive mode', rest);
        execute format('with gone as (delete from duly.%I where scheduled_at >= $1 and scheduled_at < $2 returning *) '
            'insert into duly.%I select * from gone', rest, partition) using first, last;
    end if;
    execute format('alter table duly.%I attach partition duly.%I for values from (%L) to (%L)', parent, partition, first, last);
    return case when found > 0 then 'moved' else 'made' end;
exception
    -- check_violation: a row of that day came between the count and the lock.
    when lock_not_available or deadlock_detected or check_violation then
        return 'locked';
    when others then
        return 'failed: ' || sqlerrm;
end
$$;

-- Writes `duly.has_ended(job, at)`: has this run ended? It has a branch for each of these days whose partition exists.
-- Returns whether that changed it. It is a function, and not a subquery, because statements that call it also lock or
-- update rows. When such a statement waits for another's change it evaluates a part of its plan again, and in
-- PostgreSQL 18 that spoils the choice of partitions in the rest of it: the subquery then reads the wrong day, or the
-- server crashes (seen with 18.4). Asked of the whole history, PostgreSQL locks each day for each run that is asked
-- about: with two years of days that was six times the work. A branch names its day, so its plan is made once and locks
-- nothing else. Other days are named at run time, which takes 20 µs. The default partition is asked first. Moving rows
-- out of it locks it, so from here on, to the end of this transaction, the catalogue is as it will be; and a snapshot
-- from before a move still finds the row here. It runs with its owner's rights: a role that may ask need not have been
-- granted tomorrow's partition.
create function duly.write_has_ended(first_day date, last_day date) returns boolean
language plpgsql
set timezone = 'UTC' set datestyle = 'ISO' -- written by one session, read by others
set search_path = pg_catalog, pg_temp
as $function$
declare
    today date;
    body text := $text$
declare
    day regclass;
    ended boolean;
begin
    if exists (select from duly.history_default h where h.job_id = job and h.scheduled_at = at) then
        return true;
    end if;
    if at < $text$ || quote_literal(first_day::timestamp at time zone 'UTC') || $text$ then
        null;$text$;
begin
    if not pg_try_advisory_xact_lock(1685417081, 1) then
        return false;
    end if;
    for today in select generate_series(first_day, last_day, interval '1 day')::date loop
        body := body || format(E'\n    elsif at < %L then\n        %s', (today + 1)::timestamp at time zone 'UTC',
            case when exists (
                select from pg_inherits
                where inhparent = 'duly.history'::regclass
                    and inhrelid = to_regclass('duly.history_' || to_char(today, 'YYYYMMDD'))
            ) then format('return exists (select from duly.%I h where h.job_id = job and h.scheduled_at = at);',
                'history_' || to_char(today, 'YYYYMMDD')) else 'null;' end);
    end loop;
    body := body || $text$
    end if;
    day := to_regclass('duly.history_' || to_char(at at time zone 'UTC', 'YYYYMMDD'));
    if day is null then
        return false;
    end if;
    execute format('select exists (select from %s h where h.job_id = $1 and h.scheduled_at = $2)', day) into ended using job, at;
    return ended;
end
$text$;
    if exists (select from pg_proc where oid = to_regprocedure('duly.has_ended(uuid, timestamptz)') and prosrc = body) then
        return false;
    end if;
    execute format('create or replace function duly.has_ended(job uuid, at timestamptz) returns boolean '
        'language plpgsql stable security definer set search_path = pg_catalog, pg_temp as %L', body);
    return true;
end
$function$;
select duly.write_has_ended((duly.now() at time zone 'UTC')::date - 1, (duly.now() at time zone 'UTC')::date + 7);

-- Whether the last runs of a job, in and out of schedule order, have ended; true if it has had none.
create function duly.last_runs_ended(job uuid, last_run_at timestamptz, extra_at timestamptz) returns boolean
language sql stable
begin atomic
    select (last_run_at is null or duly.has_ended(job, last_run_at)) and (extra_at is null or duly.has_ended(job, extra_at));
end;

-- A run's failed attempts so far, as its dead letter keeps them, read from the one day that holds them. A function for
-- the same reason as has_ended.
create function duly.attempts_of(job uuid, at timestamptz) returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asked text := 'select jsonb_agg(jsonb_build_object(''attempt'', a.attempt, ''worker_id'', a.worker_id, '
        '''started_at'', a.started_at, ''finished_at'', a.finished_at, ''error'', a.error) order by a.finished_at, a.attempt) '
        'from %s a where a.job_id = $1 and a.scheduled_at = $2';
    day regclass;
    tried jsonb;
begin
    execute format(asked, 'duly.attempts_default') into tried using job, at;
    if tried is null then
        day := to_regclass('duly.attempts_' || to_char(at at time zone 'UTC', 'YYYYMMDD'));
        if day is not null then
            execute format(asked, day) into tried using job, at;
        end if;
    end if;
    return coalesce(tried, '[]');
end
$$;

-- Dead runs, whole: they outlive their job's row and the history's retention.
create table duly.dead_letters (
    job_id        uuid not null,
    scheduled_at  timestamptz not null,
    buried_at     timestamptz not null,
    attempt       smallint not null,
    tenant        text not null,
    name          text not null,
    queue         text not null,
    handler       text not null,
    target        jsonb,
    payload       jsonb not null,
    payload_ref   text,
    error         jsonb not null,
    attempts      jsonb not null,
    secret_fields jsonb,                -- payload fields never shown; kept here: the job may be gone or changed since
    primary key (job_id, scheduled_at)
);
-- Lists are newest first, sweeps oldest first; each reads one tenant's letters only.
create index dead_letters_tenant on duly.dead_letters (tenant, buried_at desc, job_id, scheduled_at);
create index dead_letters_of_tenant on duly.dead_letters (tenant, buried_at, job_id, scheduled_at);
