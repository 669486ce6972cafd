-- Releases redriven runs from claims that still list them. "Neither released nor in history" means held: when history's
-- row goes, the claim must have released the run, or rescue would bring it back a second time. FOR UPDATE makes an
-- outcome that is sent again at this moment wait and then find the run gone.   $1 job_ids  $2 scheduled_ats
with held as materialized (
    select c.claim_id, c.job_ids, c.scheduled_ats
    from duly.claims c
    where c.claim_id = any (array(select claim_id from duly.live_claims where job_ids operator(pg_catalog.&&) $1::uuid[]))
    order by c.claim_id
    for update
)
update duly.claims c
set released = array_cat(c.released, gone.ordinals)
from (
    select held.claim_id, array_agg(one.ordinal::int) as ordinals
    from held
    cross join unnest(held.job_ids, held.scheduled_ats) with ordinality as one (job_id, scheduled_at, ordinal)
    join unnest($1::uuid[], $2::timestamptz[]) as asked (job_id, scheduled_at)
        on asked.job_id = one.job_id and asked.scheduled_at = one.scheduled_at
    group by held.claim_id
) gone
where c.claim_id = gone.claim_id and c.claim_id = any (array(select claim_id from held))
