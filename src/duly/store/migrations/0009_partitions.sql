-- Days of history: made beside long readers, and looked into one at a time.

-- Make one day's partition of `history` or `attempts`. What became of it:
--   made, there, moved (rows of that day came out of the default partition), crowded (too many of them to move while
--   others wait), locked (somebody holds a table: try again later), failed: and why.
-- To attach takes an exclusive lock on the default partition, which every look at history shares, and whoever waits for
-- such a lock makes all others wait behind itself. A report or a backup may hold it for hours, so nobody waits for it
-- longer than nobody notices.
-- Rows move while no row can be written to the parent: one that comes now would be sent to the default partition by the
-- old bounds, and be refused there by the new ones.
create function duly.make_partition(parent text, day date, most integer) returns text
language plpgsql
set lock_timeout = '50ms'
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
    -- Of a check: a row of that day came between the look and the lock.
    when lock_not_available or deadlock_detected or check_violation then
        return 'locked';
    when others then
        return 'failed: ' || sqlerrm;
end
$$;

create or replace function duly.ensure_partitions(first_day date, last_day date) returns integer
language sql
as $$
    select count(*)::int
    from unnest(array['history', 'attempts']) as p (parent)
    cross join generate_series(first_day, last_day, interval '1 day') as d (day)
    where duly.make_partition(p.parent, d.day::date, 100000) in ('made', 'moved')
$$;

-- Write `duly.has_ended`, with a branch for each of these days, as far as it is there. Says whether that changed it.
-- Asked of the whole history, PostgreSQL locks each day for each run that is asked about: with two years of days that was
-- six times the work. A branch names its day, so that its plan is made once and locks nothing else. Other days are named
-- when they are asked for, which takes 20 µs.
-- The default partition is asked first. Whoever moves rows out of it locks it, so from here on, to the end of this
-- transaction, the catalog is as it will be; and a snapshot from before a move still finds the row here.
-- With its owner's rights: who may ask need not have been granted tomorrow's partition.
create function duly.write_has_ended(first_day date, last_day date) returns boolean
language plpgsql
set timezone = 'UTC' set datestyle = 'ISO' -- written by one session, read by others
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
    if exists (select from pg_proc where oid = 'duly.has_ended(uuid, timestamptz)'::regprocedure and prosrc = body) then
        return false;
    end if;
    execute format('create or replace function duly.has_ended(job uuid, at timestamptz) returns boolean '
        'language plpgsql stable security definer set search_path = pg_catalog, pg_temp as %L', body);
    return true;
end
$function$;
select duly.write_has_ended((duly.now() at time zone 'UTC')::date - 1, (duly.now() at time zone 'UTC')::date + 7);

-- As before, from the one day that holds them.
create or replace function duly.attempts_of(job uuid, at timestamptz) returns jsonb
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
