-- Deletes the progress of claims that are gone.   $1 limit
with stale as (
    select p.ctid from duly.progress p
    where not exists (select from duly.claims c where c.claim_id = p.claim_id)
    limit $1
),
gone as (
    delete from duly.progress where ctid = any (array(select ctid from stale)) returning 1
)
select count(*) as dropped from gone
