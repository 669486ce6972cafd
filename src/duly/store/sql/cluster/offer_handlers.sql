-- Stores a worker's tasks, so that submits can refuse a misspelt one.   $1 names
insert into duly.handlers (name, seen_at)
select name, duly.now() from unnest($1::text[]) as t (name) order by name
on conflict (name) do update set seen_at = excluded.seen_at
