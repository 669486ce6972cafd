-- Deletes old lines of runs.   $1 seconds that they are kept  $2 limit
with old as (
    select ctid
    from duly.run_logs
    where kept_at < duly.now() - make_interval(secs => $1)
    order by kept_at
    limit $2
),
gone as (
    delete from duly.run_logs where ctid = any (array(select ctid from old)) returning 1
)
select count(*) as gone from gone
