-- Takes that right back.   $1 role
select duly.disallow_submit($1::name) as was_there
