-- Deletes rows older than their retention.   $1 seconds  $2 limit
with old as (
    select ctid from duly.audit where at < duly.now() - make_interval(secs => $1)
    order by at limit $2 for update skip locked
),
gone as (
    delete from duly.audit where ctid = any (array(select ctid from old)) returning 1
)
select count(*) as forgotten from gone
