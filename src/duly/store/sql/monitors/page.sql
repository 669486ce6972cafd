-- Monitors of a tenant in the order of their slugs.   $1 tenant  $2 after this slug, or null  $3 limit
select * from duly.monitors where tenant = $1 and ($2::text is null or slug > $2) order by slug limit $3
