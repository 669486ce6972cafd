-- Days that should have a partition and have none, the nearest first: coming days, and past days whose rows are in the
-- default partition because no scheduler was leading. Rows older than the oldest partition stay there: for such days,
-- readers assume that nothing was pruned.
--   $1 days ahead  $2 maximum number of past days
with clock as materialized (
    select (duly.now() at time zone 'UTC')::date as today
),
parent as (
    select parent,
        (
            select min(to_date(right(c.relname, 8), 'YYYYMMDD'))
            from pg_inherits i
            join pg_class c on c.oid = i.inhrelid
            where i.inhparent = ('duly.' || parent)::regclass::oid and c.relname::text ~ '_\d{8}$'
        ) as earliest
    from unnest(array['history', 'attempts']) as p (parent)
),
stranded as (
    select distinct 'history' as parent, (scheduled_at at time zone 'UTC')::date as day from duly.history_default
    union all
    select distinct 'attempts', (scheduled_at at time zone 'UTC')::date from duly.attempts_default
),
missing as (
    select p.parent, d.day::date as day, 0 as rank
    from parent p
    cross join clock
    cross join generate_series(clock.today - 1, clock.today + $1::int, interval '1 day') as d (day)
    union all
    (
        select s.parent, s.day, row_number() over (partition by s.parent order by s.day desc)::int
        from stranded s
        join parent p on p.parent = s.parent and p.earliest <= s.day
        cross join clock
        where s.day < clock.today - 1
            and to_regclass(format('duly.%s_%s', s.parent, to_char(s.day, 'YYYYMMDD'))) is null
    )
)
select missing.parent, missing.day
from missing
cross join clock
where missing.rank <= $2 and to_regclass(format('duly.%s_%s', missing.parent, to_char(missing.day, 'YYYYMMDD'))) is null
order by missing.rank, abs(missing.day - clock.today), missing.day, missing.parent desc
