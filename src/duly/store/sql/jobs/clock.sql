-- The moment of a copy: what is to run now becomes due at it.
select duly.now() as now
