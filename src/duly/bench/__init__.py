"""`duly bench`: Duly's throughput and latency, each figure beside a raw-SQL loop of the same statements.

Read in this order:

1. `main`: the list of measurements.
2. One measurement each: `drain`, `submit`, `api`, `latency`, `lag`, `hot_second`, `planning`; the long ones are
   `registered`, `backlog`, and `steady` and `handlers` (both over `flow`).
3. `lab` (what every measurement gets), `server` (a fresh store for every figure), `processes` and `child` (both ends of
   the channel to a measured process), and those processes: `worker_process`, `scheduler_process`, `api_process`,
   `raw_process` (over `raw`).
4. `figures` and `report`: the results.

Nothing is weakened for speed: PostgreSQL has its default settings, and so has Duly, except for the number of runs that
a worker holds at once.
"""
