-- The jobs among the latest changes: triggered, resumed, changed …   $1 number of changes
select distinct job_id
from (select job_id, at from duly.job_changes order by change_id desc limit $1) latest
where at > duly.now() - interval '1 minute'
