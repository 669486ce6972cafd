-- The open incidents of jobs: of these (null: of all), at most so many, the oldest first.   $1 job ids  $2 limit
select *
from duly.incidents
where closed_at is null and job_id is not null and ($1::uuid[] is null or job_id = any ($1))
order by opened_at
limit $2
