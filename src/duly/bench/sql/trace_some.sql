-- Leaves a sampled context with some jobs, as if their submits were traced.
--   $1 share of the jobs
update duly.jobs
set trace = '00-' || md5(job_id::text) || '-' || left(md5(job_id::text), 16) || '-01'
where random() < $1
