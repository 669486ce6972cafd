-- Puts a version into force, unless another node was first.   $1 version  $2 data  $3 the version in force until now
-- The first version of a store replans nothing: the rules by which earlier plans were made are unknown.
with noted as (
    insert into duly.zone_rules (version, noted_at, finished_at, data)
    select $1, duly.now(), case when $3::text is null then duly.now() end, $2
    where $3::text is not distinct from (
        select version from duly.zone_rules order by noted_at desc, version desc limit 1
    )
    on conflict do nothing
    returning version
),
forgotten as (
    update duly.zone_rules set data = null
    where data is not null and exists (select from noted) and version is distinct from $3::text
)
select version, pg_notify('duly_zones', version)::text as notified from noted
