-- The lanes of these queues that hold any run, startable or not.   $1 queues
-- The statement goes from lane to lane, one index descent each: the cost follows the lanes there are, however many
-- queues are asked for.
with recursive lane as (
    (select queue, priority from duly.runs order by queue, priority limit 1)
    union all
    select next.queue, next.priority
    from lane
    cross join lateral (
        select r.queue, r.priority
        from duly.runs r
        where (r.queue, r.priority) > (lane.queue, lane.priority)
        order by r.queue, r.priority
        limit 1
    ) next
)
select queue, priority from lane where queue = any ($1::text[])
