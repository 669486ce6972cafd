-- Locks monitors at which the watch has to look, without those that a ping or another leader holds, and returns them with
-- the time of this look.   $1 limit
select m.*, clock.now
from (select duly.now() as now) clock
join lateral (
    select * from duly.monitors m
    where m.look_at <= clock.now
    order by m.look_at
    limit $1
    for no key update skip locked
) m on true
