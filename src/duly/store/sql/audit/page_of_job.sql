-- One page of the audit trail of a job, newest first.   $1 tenant  $2 actor, or the id of a key; null: any
--   $3 action; null: any  $4 from  $5 before  $6, $7 at and audit_id of the last row of the page before  $8 limit
--   $9 rows to read at most  $10 job_id
with seen as materialized (
    select audit_id, at, who, via, actor, action, kind, object, job_id, before, after, reason
    from duly.audit
    where job_id = $10 and tenant = $1 and at >= $4 and at < $5 and (at, audit_id) < ($6::timestamptz, $7::bigint)
    order by at desc, audit_id desc
    limit $9
)
select found.*, false as stop
from (
    select * from seen
    where ($2::text is null or actor = $2 or who ->> 'key' = $2) and ($3::text is null or action = $3)
    order by at desc, audit_id desc
    limit $8
) as found
union all
-- Where the reading stopped, if there may be more.
(
    select *, true from seen
    where (select count(*) from seen) = $9
    order by at, audit_id
    limit 1
)
order by at desc, audit_id desc, stop
