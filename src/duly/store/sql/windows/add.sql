-- Adds a maintenance window.   $1 id  $2 tenant  $3 job (null: all)  $4 start (null: now)  $5 end  $6 reason
insert into duly.maintenance_windows (window_id, tenant, job_id, starts_at, ends_at, reason, created_at)
select $1, $2, $3::uuid, coalesce($4::timestamptz, now.at), $5, $6, now.at from (select duly.now() as at) now
where $5::timestamptz > coalesce($4::timestamptz, now.at)
on conflict (window_id) do update set window_id = excluded.window_id
returning window_id, tenant, job_id, starts_at, ends_at, reason, created_at
