-- Bodies below are bound when they are created: by this session, and not by what its role has in its search_path.
set local search_path = pg_catalog;

-- The end of each run in a line asks whether another one of the job is about. In a line of 100,000 that meant to read
-- 100,000 runs. Of the runs in the queue this index has those that let the next one go (flag 8); ordinary runs do not
-- pay for it.
create index runs_serial on duly.runs (job_id, scheduled_at) where state = 'queued' and flags & 8 = 8;

-- For a run that comes back to the queue: while others of its job wait, it is one that lets the next one go (8).
create function duly.mark_of_line(job uuid) returns smallint
language sql stable parallel safe
begin atomic
    select (case when exists (select from duly.runs w where w.job_id = job and w.state = 'waiting') then 8 else 0 end)::smallint;
end;
