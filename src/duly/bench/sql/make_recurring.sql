-- Makes the one-offs of a store occurrences of recurring jobs, as far as a worker can tell.
update duly.jobs set kind = 'cron', schedule = '0 0 * * *'
