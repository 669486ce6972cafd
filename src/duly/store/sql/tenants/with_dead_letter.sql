-- The tenant, other than one, that has a dead letter, for people.   $1 job_id  $2 scheduled_at  $3 tenant to leave out
select d.tenant from duly.dead_letters d where d.job_id = $1 and d.scheduled_at = $2 and d.tenant <> $3
