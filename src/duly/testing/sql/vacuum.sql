-- Every step leaves dead rows in these tables, and a year of steps is over before autovacuum wakes up.
vacuum duly.claims, duly.jobs, duly.runs
