-- Not written yet.
select 1;
