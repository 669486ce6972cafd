-- Sets the store's clock to $1. Only while no process uses the store.
update duly.clock set shift = $1::timestamptz - clock_timestamp()
