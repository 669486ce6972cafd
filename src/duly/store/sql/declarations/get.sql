-- The declaration of a key.   $1 tenant  $2 key
select job_id, owner, deploy, rank, renamed_to, undeclared_at, reason
from duly.declarations
where tenant = $1 and key = $2
