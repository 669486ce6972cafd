"""Turns due occurrences into runs. Read in this order:

- `near_future`: which job is due when, for the next minutes of the shards this node leads;
- `loader`: fills it from the store and keeps it up to date;
- `backlog`: the due jobs taken from it, in the order in which they are fired;
- `firer`: reads a batch of the backlog, plans it and sends it to the store;
- `planner`: what a batch comes to, without I/O;
- `governor`: how fast late runs are released; `catch_up`: releases those that it held back.
"""
