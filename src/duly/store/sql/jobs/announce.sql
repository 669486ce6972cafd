-- Tells workers and leaders of jobs that were copied, as jobs/submit.sql does for those it stores itself.
--   $1 the queues that have new runs
--   $2 the jobs that fall due soon, in the format that the scheduler's loader reads; null: none
select
    (select count(pg_notify('duly_work', queue)::text) from unnest($1::text[]) as q (queue)) as work,
    (select count(pg_notify('duly_due', due)::text) from (select $2::text as due) d where due is not null) as due
