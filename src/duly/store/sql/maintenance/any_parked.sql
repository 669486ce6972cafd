select from duly.parked limit 1
