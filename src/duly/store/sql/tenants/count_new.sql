-- Counts the jobs that would be new: a submit that is sent again, or whose dedupe_key exists, needs no slot.
--   $1 tenant  $2 job_ids  $3 dedupe_keys
select count(distinct coalesce(asked.dedupe_key, asked.job_id::text)) as new
from unnest($2::uuid[], $3::text[]) as asked (job_id, dedupe_key)
where not exists (select from duly.jobs j where j.job_id operator(pg_catalog.=) asked.job_id)
    and not exists (
        select from duly.jobs j
        where asked.dedupe_key is not null and j.tenant operator(pg_catalog.=) $1::text
            and j.dedupe_key operator(pg_catalog.=) asked.dedupe_key
    )
