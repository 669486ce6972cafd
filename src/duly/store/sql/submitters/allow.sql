-- Lets a PostgreSQL role submit for a tenant through duly.submit, and nothing else.   $1 role  $2 tenant  $3 commands
select duly.allow_submit($1::name, $2::text, $3::boolean)
