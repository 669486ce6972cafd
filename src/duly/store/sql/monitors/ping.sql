-- Notes a ping, of the monitor with this token or, without one, of this name.
--   $1 tenant  $2 slug  $3 token or null  $4 start, success, failure or note  $5 id of what runs; empty: none was given
--   $6 exit status or null  $7 note or null  $8 pings kept  $9 starts kept
-- The watch is called only where something changes for it: a failure, a success after something was wrong, a start that
-- must end before the watch would look anyway.
with clock as (
    select duly.now() as now
),
target as (
    select t.tenant, t.slug from duly.monitors t where t.token = $3
    union all
    select $1, $2 where $3::bytea is null
),
old as (
    select m.tenant, m.slug, m.look_at
    from duly.monitors m
    join target t on t.tenant = m.tenant and t.slug = m.slug
    for no key update of m
),
noted as (
    update duly.monitors m
    set last_start_at = case when $4 = 'start' then clock.now else m.last_start_at end,
        last_success_at = case when $4 = 'success' then clock.now else m.last_success_at end,
        last_failure_at = case when $4 = 'failure' then clock.now else m.last_failure_at end,
        failure = case $4
            when 'success' then null
            when 'failure' then jsonb_build_object('at', clock.now, 'exit_status', $6::integer, 'note', $7::text)
            else m.failure
        end,
        starts = case
            when $4 = 'note' then m.starts
            when $4 <> 'start' then (
                -- A success also ends what should have ended long ago: nothing else would.
                select coalesce(jsonb_object_agg(s.rid, s.at), '{}')
                from jsonb_each_text(m.starts) s (rid, at)
                where s.rid <> $5
                    and not ($4 = 'success' and s.at::timestamptz + make_interval(secs => m.max_runtime_seconds)
                        <= clock.now)
            )
            when m.starts ? $5 or (select count(*) from jsonb_object_keys(m.starts)) < $9::integer
                then m.starts || jsonb_build_object($5::text, clock.now)
            else m.starts
        end,
        pings = (
            select jsonb_agg(p.ping order by p.place)
            from jsonb_array_elements(
                jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                    'at', clock.now, 'event', $4::text, 'rid', nullif($5, ''), 'exit_status', $6::integer,
                    'note', $7::text,
                    'seconds', case when $4 in ('success', 'failure') then
                        extract(epoch from clock.now - (m.starts ->> $5)::timestamptz)
                    end
                ))) || m.pings
            ) with ordinality p (ping, place)
            where p.place <= $8::integer
        ),
        look_at = case
            when $4 = 'failure' or $4 = 'success' and (m.alarmed or m.failure is not null)
                then least(m.look_at, clock.now)
            when $4 = 'start' then least(m.look_at, clock.now + make_interval(secs => m.max_runtime_seconds))
            else m.look_at
        end,
        version = m.version + 1
    from old, clock
    where m.tenant = old.tenant and m.slug = old.slug
    returning m.slug, m.look_at < old.look_at as sooner
)
select n.slug, (select count(pg_notify('duly_monitors', '')::text) from noted s where s.sooner) as told
from noted n
