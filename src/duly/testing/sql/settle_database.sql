-- Planning fire.sql takes longer than running it, and a test sends it thousands of times with arrays of one element.
alter database {name} set plan_cache_mode = force_generic_plan
