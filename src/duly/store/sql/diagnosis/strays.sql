-- Rows of the history's default partition whose day is today or later: nothing has made their day's partition. Of a
-- missing day rows are being written now, so they are among those that ended last, which an index finds.
--   $1 maximum number of rows to look at
select count(*) as strays
from (
    select scheduled_at
    from duly.history_default
    order by finished_at desc
    limit $1
) latest
where scheduled_at >= (select date_trunc('day', duly.now(), 'UTC'))
