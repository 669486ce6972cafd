-- Exact counts of the remaining and of the recorded runs.
select (select count(*) from duly.history) as recorded,
    (select count(*) from duly.history where status = 'succeeded' and attempt = 1) as succeeded,
    (select count(*) from duly.runs) as queued,
    (select count(*) from duly.claims) as claims,
    (select count(*) from duly.jobs) as jobs
