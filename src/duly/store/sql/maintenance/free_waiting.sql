-- Finds and locks jobs whose first waiting run has no unfinished run before it. A completion releases the next run
-- itself; this finds a run that started to wait at the very moment the one before it ended. jobs/put_in_order.sql, next
-- in this transaction, decides under the lock.   $1 limit
with waiting as materialized (
    select distinct w.job_id from duly.runs w where w.state = 'waiting'
),
free as materialized (
    select w.job_id
    from waiting w
    where not exists (select from duly.runs r where r.job_id = w.job_id and r.state <> 'waiting')
        and w.job_id not in (
            select held.job_id from duly.held_runs held where not duly.has_ended(held.job_id, held.scheduled_at)
        )
    limit $1
)
select j.job_id
from duly.jobs j
where j.job_id = any (array(select job_id from free))
order by j.job_id
for no key update skip locked
