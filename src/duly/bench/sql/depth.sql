-- How many runs could start and have not been claimed, and how many are unfinished at all.
select count(*) filter (where r.run_at <= clock.now) as startable,
    count(*) + (select coalesce(sum(cardinality(c.job_ids)), 0) from duly.claims c) as unfinished
from duly.runs r
cross join (select duly.now() as now offset 0) clock
