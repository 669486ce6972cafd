-- The time-zone data of some versions.   $1 versions
select version, data from duly.zone_rules where version = any ($1::text[]) and data is not null
