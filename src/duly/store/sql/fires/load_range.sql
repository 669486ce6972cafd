-- Reads the jobs of a bulk submit, which lie between two ids because ids ascend with the time they were made. One page.
--   $1 after this id  $2 up to this id  $3 page size
select job_id, shard, next_run_at
from duly.jobs
where job_id > $1 and job_id <= $2
order by job_id
limit $3
