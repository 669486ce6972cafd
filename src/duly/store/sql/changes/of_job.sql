-- The changes made to a job, newest first.   $1 job_id  $2 limit
select at, what, detail
from duly.job_changes
where job_id = $1
order by at desc, change_id desc
limit $2
