-- What the database refused once is not refused for ever, and what Duly calls is PostgreSQL's own.

-- Bodies below are bound when they are created: by this session, and not by what its role has in its search_path.
set local search_path = pg_catalog;

-- A job that could be planned but not be fired is tried again at `retry_at`, later each time (`tries`).
alter table duly.parked
    add column retry_at timestamptz,
    add column tries    integer not null default 0;

-- Older versions paused such jobs for whatever the server answered (a lock timeout, a right that was revoked for a moment)
-- and nobody resumed them. They are tried again now.
insert into duly.parked (job_id, version, parked_at, retry_at)
select job_id, version, updated_at, duly.now()
from duly.jobs
where status = 'paused' and status_reason like 'cannot be fired: %'
on conflict do nothing;

-- Hot functions: bound here, so that no caller's search_path can lead them elsewhere, and none has to be switched.
create or replace function duly.now() returns timestamptz
language sql volatile
begin atomic
    select coalesce(frozen_at, clock_timestamp() + shift) from duly.clock;
end;

create or replace function duly.new_token() returns uuid
language sql volatile
begin atomic
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;
end;

create or replace function duly.shard_of(job_id uuid, shard_count integer) returns smallint
language sql immutable
begin atomic
    select (((get_byte(uuid_send(job_id), 14) << 8) | get_byte(uuid_send(job_id), 15)) % shard_count)::smallint;
end;

-- All others have a path of their own. But not duly.has_ended, which is asked for each run that ends: it calls nothing,
-- and compares like with like.
do $$
declare
    one regprocedure;
begin
    for one in
        select p.oid::regprocedure
        from pg_proc p
        where p.pronamespace = 'duly'::regnamespace
            and p.proname not in ('now', 'new_token', 'shard_of', 'has_ended')
    loop
        execute format('alter function %s set search_path = pg_catalog', one);
    end loop;
end
$$;
