-- Sets the bar to the current time: from now on no claim gets a smaller id. Returns the smallest id possible.
update duly.claim_floor
set bar = greatest(bar, (extract(epoch from clock_timestamp()) * 1000.0)::bigint)
returning (rpad(lpad(to_hex(bar), 12, '0') || '7', 32, '0'))::uuid as bar
