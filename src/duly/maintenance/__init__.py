"""Upkeep of a store, each service on the leader of shard 0 (`leader`). Read in this order:

1. `rescuer`: takes back runs of lost workers; `claim_floor` keeps its looks short;
2. `guardian`: repairs states that should never occur;
3. `unparker`, `zone_keeper`, `sql_submits`: plan jobs that were parked, that new time-zone data moves, that SQL stored;
4. `partitions`, `tidier`: make history's partitions ahead, and delete old rows.
"""
