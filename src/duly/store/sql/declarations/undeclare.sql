-- Notes that no live deploy declares a job any more, unless it was declared since. Locks the declaration.
--   $1 tenant  $2 key  $3 rank it was read with  $4 the deploy since which it is so  $5 its rank
--   $6 the reason with which the job is paused next in this transaction
update duly.declarations
set undeclared_at = duly.now(), deploy = $4, rank = $5, reason = $6
where tenant = $1 and key = $2 and rank = $3 and undeclared_at is null and renamed_to is null
returning job_id
