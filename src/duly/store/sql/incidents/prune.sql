-- Deletes incidents that were closed long ago, and maintenance windows that ended then.   $1 seconds  $2 limit
with old as (
    select incident_id from duly.incidents where closed_at < duly.now() - make_interval(secs => $1)
    order by closed_at limit $2 for update skip locked
),
gone as (
    delete from duly.incidents where incident_id = any (array(select incident_id from old)) returning 1
),
past as (
    delete from duly.maintenance_windows where ends_at < duly.now() - make_interval(secs => $1)
)
select count(*) as forgotten from gone
