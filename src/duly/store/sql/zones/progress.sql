-- Stores how far the walk of a version has come.   $1 version  $2 last job_id read; null: the walk has ended
update duly.zone_rules
set replanned = coalesce($2::uuid, replanned), finished_at = case when $2::uuid is null then duly.now() end
where version = $1
