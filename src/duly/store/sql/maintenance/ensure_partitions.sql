-- $1 days ahead
select duly.ensure_partitions((duly.now() at time zone 'UTC')::date - 1, (duly.now() at time zone 'UTC')::date + $1::int)
    as made
