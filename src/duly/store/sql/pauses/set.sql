-- Makes the pause that this transaction has written end by itself; null: it does not.   $1 job_id  $2 until
with change as (
    update duly.job_changes c
    set detail = c.detail || jsonb_build_object('until', $2::timestamptz)
    where c.change_id = (select max(change_id) from duly.job_changes where job_id = $1 and what = 'paused')
        and $2::timestamptz is not null
    returning c.job_id, c.change_id
),
cleared as (
    delete from duly.pauses where job_id = $1 and $2::timestamptz is null
)
insert into duly.pauses as p (job_id, change_id, until)
select job_id, change_id, $2 from change
on conflict (job_id) do update set change_id = excluded.change_id, until = excluded.until
returning p.until
