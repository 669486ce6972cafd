select name from duly.handlers order by name
