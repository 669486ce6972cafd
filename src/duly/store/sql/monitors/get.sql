-- One monitor.   $1 tenant  $2 slug
select * from duly.monitors where tenant = $1 and slug = $2
