-- Seconds until the watch has to look at some monitor; null: at none.
select extract(epoch from min(look_at) - duly.now())::float8 as seconds from duly.monitors where look_at < 'infinity'
