-- From now on no claim gets a smaller id than this moment's. What comes back is the smallest.
update duly.claim_floor
set bar = greatest(bar, (extract(epoch from clock_timestamp()) * 1000.0)::bigint)
returning (rpad(lpad(to_hex(bar), 12, '0') || '7', 32, '0'))::uuid as bar
