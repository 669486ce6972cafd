-- Stores a worker's tasks with their own defaults, so that every submit knows both.
--   $1 names  $2 what each sets, as JSON; null: nothing  $3 the worker's application  $4 its deploy  $5 the deploy's rank
-- A task that is not returned keeps the defaults that it has: a newer deploy has offered them, or another application
-- that is alive. Ranks of different applications say nothing about each other.
insert into duly.handlers as h (name, seen_at, defaults, owner, deploy, rank)
select t.name, duly.now(), t.defaults::jsonb, $3, $4, $5
from unnest($1::text[], $2::text[]) as t (name, defaults)
order by t.name
on conflict (name) do update
set seen_at = excluded.seen_at, defaults = excluded.defaults, owner = excluded.owner, deploy = excluded.deploy,
    rank = excluded.rank
where case
    when coalesce(h.owner, '') in ('', excluded.owner) then coalesce(h.rank, '') <= excluded.rank
    else not exists (
        select from duly.nodes n
        where n.kind = 'worker' and n.lease_until > duly.now()
            and n.info -> 'app' ->> 'name' = h.owner and n.info -> 'tasks' ? h.name
    )
end
returning h.name
