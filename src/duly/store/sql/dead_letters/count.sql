-- The number of matching dead letters.
--   $1 tenant  $2 job_id  $3 name  $4 queue  $5 handler  $6 error type  $7 buried from  $8 buried before; null: any
select count(*) as letters
from duly.dead_letters d
where d.tenant = $1
    and ($2::uuid is null or d.job_id = $2) and ($3::text is null or d.name = $3) and ($4::text is null or d.queue = $4)
    and ($5::text is null or d.handler = $5) and ($6::text is null or d.error ->> 'type' = $6)
    and ($7::timestamptz is null or d.buried_at >= $7) and ($8::timestamptz is null or d.buried_at < $8)
