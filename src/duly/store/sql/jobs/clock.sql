-- The time of a copy: jobs that run now become due at it.
select duly.now() as now
