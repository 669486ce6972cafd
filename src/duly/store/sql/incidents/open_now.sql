-- All open incidents, the oldest first.   $1 limit
select * from duly.incidents where closed_at is null order by opened_at limit $1
