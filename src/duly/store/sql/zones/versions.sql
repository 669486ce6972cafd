-- The versions of the time-zone data that were ever in force, newest first.
select version, noted_at, replanned, finished_at from duly.zone_rules order by noted_at desc, version desc
