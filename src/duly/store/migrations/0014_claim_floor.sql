-- Where looks at all claims begin. Claims come and go by the hundred each second. While somebody's report keeps a
-- snapshot, vacuum may not remove those that are gone, and whoever looks at all claims walks over them: half a second
-- with 100,000. Claim ids ascend with the time, so a look may begin at the oldest claim that is still held.
--
-- Overlap is decided by such a look, so that floor must be right, also about claims that are not committed yet:
-- 1. `bar` is set to this moment. From then on no claim gets an id below it, whatever the clock does (new_claim_id).
-- 2. Every transaction that could have taken a smaller one before that has duly.claims locked for writing. When all that
--    had are gone (maintenance/claimers.sql), whatever will ever be held below the bar is there to be seen.
-- 3. `floor` rises to the bar, and `olds` names what is still held below it. Whoever sees the new floor sees that too.
create table duly.claim_floor (
    singleton boolean primary key default true check (singleton),
    bar       bigint not null default 0, -- milliseconds since 1970, as a claim's id begins
    floor     uuid not null default '00000000-0000-0000-0000-000000000000',
    olds      uuid[] not null default '{}'
) with (fillfactor = 50);
insert into duly.claim_floor default values;

-- A fencing token for a claim: milliseconds, then their 4096th parts, then chance. Never below the bar, and greater than
-- every token whose runs went back to the queue (duly.heed_tokens).
create function duly.new_claim_id() returns uuid
language sql volatile
set search_path = pg_catalog
as $$
    select (lpad(to_hex(greatest(now.micros / 1000, (select bar from duly.claim_floor))), 12, '0')
        || '7' || lpad(to_hex(now.micros % 1000 * 4096 / 1000), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
    from (
        select (date_part('epoch', clock_timestamp() + shift + token_lead) * 1000000)::bigint as micros from duly.clock
    ) now
$$;

-- Every claim there is, read from the floor on.
create view duly.live_claims as
select c.*
from duly.claims c
where c.claim_id >= (select floor from duly.claim_floor)
union all
select c.*
from duly.claims c
where c.claim_id = any ((select olds from duly.claim_floor)::uuid[]);

-- As before, from the floor on.
create or replace function duly.claimed_jobs() returns setof uuid
language sql stable
set search_path = pg_catalog set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
    select unnest(job_ids)
    from (select job_ids from duly.claims where claim_id >= (select floor from duly.claim_floor) order by claim_id) recent
    union all
    select unnest(c.job_ids)
    from duly.claims c
    where c.claim_id = any ((select olds from duly.claim_floor)::uuid[])
$$;

-- As before, from the floor on.
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
            or j.job_id in (select unnest(c.job_ids) from duly.live_claims c) then 'active'
        else 'completed'
    end as shown_status
from duly.jobs j;
