"""`make bench-peers`: the same work through Duly, through raw SQL and through its peers, one after the other.

Read in this order: `__main__` (options) → `rounds` (what is measured when) → `measures` (one measurement of a peer
each) and `ours` (the same of Duly and of raw SQL, by `duly bench`) → `driving` (the line to a peer's processes),
`drivers/` (a file for each peer) → `setting_up` (their environments, Redis) → `results`, `page`, `plots` (what comes
out).

To add a peer, write one file: `drivers/<name>.py` or `drivers/<name>.mjs`. `drivers/line.py` says what it must do; what
it needs installed is named at its head.
"""
