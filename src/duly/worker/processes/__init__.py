"""Processes that a worker can kill. Read in this order:

1. `guard_process`: a small process that starts programs and ends them when the worker is gone; its protocol;
2. `guard`: the worker's side of it;
3. `children`: a pool of Python processes for tasks with `isolation="process"`; `child` is such a process.
"""
