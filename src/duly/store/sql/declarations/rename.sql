-- Another key has taken over the job of a declaration locked by declarations/take.sql: an older deploy that still
-- declares this key finds the newer rank, and makes no second job.   $1 tenant  $2 key  $3 job_id  $4 the other key
update duly.declarations
set job_id = $3, renamed_to = $4, undeclared_at = null, reason = null
where tenant = $1 and key = $2
