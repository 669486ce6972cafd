-- The Python tasks that workers have offered.
select name from duly.handlers order by name
