-- Notes jobs that were submitted by a copy, in the transaction of the copy.
--   $1 their number  $2 the first of their ids  $3 who acts (`Actor.note`)
insert into duly.audit (at, tenant, who, action, kind, after, reason)
select duly.now(), $3::jsonb operator(pg_catalog.->>) 'tenant', $3::jsonb operator(pg_catalog.->) 'who', 'submit', 'job',
    jsonb_build_object('jobs', $1::int, 'job_ids', $2::uuid[]), $3::jsonb operator(pg_catalog.->>) 'reason'
