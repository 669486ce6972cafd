-- $1 names
select name, current_setting(name) as value from pg_settings where name = any ($1::text[]) order by name
