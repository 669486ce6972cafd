-- When the pauses of these jobs end by themselves.   $1 job_ids
select p.job_id, p.until
from duly.pauses p
where p.job_id = any ($1::uuid[])
    and not exists (
        select from duly.job_changes c
        where c.job_id = p.job_id and c.change_id > p.change_id
            and c.what in ('paused', 'parked', 'resumed', 'unparked', 'cancelled')
    )
