-- Ties a declaration, locked by declarations/take.sql, to its job.   $1 tenant  $2 key  $3 job_id  $4 fingerprint
update duly.declarations
set job_id = $3, fingerprint = $4, renamed_to = null, undeclared_at = null, reason = null
where tenant = $1 and key = $2
