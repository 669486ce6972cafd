-- Deletes a monitor.   $1 tenant  $2 slug
delete from duly.monitors where tenant = $1 and slug = $2 returning slug
