-- Number of startable runs that are not claimed, and of all unfinished runs.
select count(*) filter (where r.run_at <= clock.now) as startable,
    count(*) + (select coalesce(sum(cardinality(c.job_ids)), 0) from duly.claims c) as unfinished
from duly.runs r
cross join (select duly.now() as now offset 0) clock
