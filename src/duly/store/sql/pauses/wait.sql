-- Seconds until the next pause ends; null: none does.
select extract(epoch from min(until) - duly.now())::float8 as seconds from duly.pauses
