-- Stops the clock at $1. Backwards only while there are no jobs, which could have seen a later time.
update duly.clock
set frozen_at = $1
where frozen_at is null or frozen_at <= $1 or not exists (select from duly.jobs)
returning frozen_at
