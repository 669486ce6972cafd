-- Deletes keys older than their retention.   $1 seconds  $2 limit
with old as (
    select ctid from duly.ledger where completed_at < duly.now() - make_interval(secs => $1)
    order by completed_at limit $2 for update skip locked
),
gone as (
    delete from duly.ledger where ctid = any (array(select ctid from old)) returning 1
)
select count(*) as forgotten from gone
