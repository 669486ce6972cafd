-- Jobs by the beginning of their id or by their name, for people at a keyboard.
--   $1 tenant  $2, $3 the lowest and highest id with that beginning  $4 name
select *
from duly.job_status
where tenant = $1 and (job_id between $2 and $3 or name = $4)
order by job_id desc
limit 5
