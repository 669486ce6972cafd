-- Keys whose jobs are not what this deploy has declared: an old node, which knows no deploys, has redefined them, or
-- a standby was promoted that lacked the declaration, wholly or but for an older deploy's.
--   $1 tenant  $2 keys  $3 rank of the deploy  $4 its owner
select asked.key
from unnest($2::text[]) as asked (key)
left join duly.declarations d on d.tenant = $1 and d.key = asked.key
left join duly.jobs j on j.job_id = d.job_id
where d.key is null
    or (d.rank < $3 and d.owner = $4)
    or (d.rank = $3 and d.renamed_to is null and j.status is distinct from 'cancelled'
        and (j.job_id is null or j.fingerprint is distinct from d.fingerprint))
