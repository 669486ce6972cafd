-- Every step leaves dead rows behind in these, and a year of steps is over before autovacuum wakes up.
vacuum duly.claims, duly.jobs, duly.runs
