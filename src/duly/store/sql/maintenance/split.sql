-- Replaces a claim that holds several runs by claims of one run each, so that each can be taken back by itself.
-- Released runs stay where they went. Does nothing if the claim holds only one run.
--   $1 claim_id, locked by lock_expired.sql in this transaction
with held as materialized (
    select c.worker_id, c.claimed_at, c.lease_until, one.*, one.ordinal = any (c.cancelled) as is_cancelled
    from duly.claims c
    cross join unnest(c.job_ids, c.scheduled_ats, c.fired_ats, c.epochs, c.attempts, c.flags)
        with ordinality as one (job_id, scheduled_at, fired_at, epoch, attempt, flags, ordinal)
    where c.claim_id = $1 and not (one.ordinal = any (c.released))
),
apart as (
    insert into duly.claims (claim_id, worker_id, claimed_at, lease_until, job_ids, scheduled_ats, fired_ats, epochs,
        attempts, flags, cancelled)
    select duly.new_claim_id(), worker_id, claimed_at, lease_until, array[job_id], array[scheduled_at], array[fired_at],
        array[epoch], array[attempt], array[flags], case when is_cancelled then array[1] else '{}' end
    from held
    where (select count(*) from held) > 1
    returning claim_id
),
gone as (
    delete from duly.claims where claim_id = $1 and exists (select from apart)
)
select claim_id from apart
