-- Rewrites duly.has_ended for the days that are asked about most.   $1 days ahead
select duly.write_has_ended((duly.now() at time zone 'UTC')::date - 1, (duly.now() at time zone 'UTC')::date + $1::int)
