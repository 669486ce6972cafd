-- $1 job_id  $2 tenant
select * from duly.job_status where job_id = $1 and tenant = $2
