-- What a bulk submit has registered: the jobs between two ids, which ascend with the time they were made, a page at a time.
--   $1 after this id  $2 up to this one  $3 page size
select job_id, shard, next_run_at
from duly.jobs
where job_id > $1 and job_id <= $2
order by job_id
limit $3
