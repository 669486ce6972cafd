"""`duly bench`: what Duly does in a second, each figure beside a raw-SQL loop of the same statements.

Read in this order: `main` (what is measured) → `drain`, `submit`, `latency`, `lag`, `hot_second` (one measurement
each), `steady` and `handlers` (both through `flow`), `backlog` (these three take long) → `server` (a fresh store for
every figure), `processes` and `child` (both ends of a measured process), `worker_process`, `scheduler_process`,
`raw_process` (what those processes do) → `figures`, `report` (what comes out).

Nothing is weakened for speed: the server's settings are its defaults, and the settings of Duly are its defaults but for
the number of runs a worker holds at once.
"""
