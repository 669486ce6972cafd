-- Whether any job is parked.
select from duly.parked limit 1
