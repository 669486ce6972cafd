-- The nodes that are alive, by their leases.
select kind, name, version from duly.nodes where stopped_at is null and lease_until > duly.now() order by kind, name
