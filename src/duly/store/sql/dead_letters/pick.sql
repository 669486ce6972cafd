-- Locks a batch of matching dead letters, oldest first, buried up to a given time: letters buried again meanwhile are
-- not taken twice.
--   $1 tenant  $2 job_id  $3 name  $4 queue  $5 handler  $6 error type  $7 buried from  $8 buried before; null: any
--   $9 one scheduled_at alone, with $2; null: any  $10 buried up to  $11 limit
--   $12, $13, $14 buried_at, job_id and scheduled_at of the last letter of the batch before, or null
select d.job_id, d.scheduled_at, d.buried_at
from duly.dead_letters d
where d.tenant = $1
    and ($2::uuid is null or d.job_id = $2) and ($3::text is null or d.name = $3) and ($4::text is null or d.queue = $4)
    and ($5::text is null or d.handler = $5) and ($6::text is null or d.error ->> 'type' = $6)
    and ($7::timestamptz is null or d.buried_at >= $7) and ($8::timestamptz is null or d.buried_at < $8)
    and ($9::timestamptz is null or d.scheduled_at = $9) and d.buried_at <= $10
    and ($12::timestamptz is null or (d.buried_at, d.job_id, d.scheduled_at) > ($12, $13::uuid, $14::timestamptz))
order by d.buried_at, d.job_id, d.scheduled_at
limit $11
for update
