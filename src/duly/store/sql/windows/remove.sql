-- Removes a maintenance window; one that goes on ends with it.   $1 window  $2 tenant
delete from duly.maintenance_windows where window_id = $1 and tenant = $2 returning window_id
