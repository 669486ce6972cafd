"""`make bench-peers`: the same work through Duly, through raw SQL and through its peers, one after the other.

Read in this order: `__main__` (options) → `rounds` (the order of measurements) → `measures` (the
measurements of a peer) and `ours` (those of Duly and of raw SQL, by `duly bench`) → `driving` (the connection to a
peer's processes), `drivers/` (a file for each peer) → `setting_up` (their environments, Redis) → `results`, `page`,
`plots` (the output).

To add a peer, write one file: `drivers/<name>.py` or `drivers/<name>.mjs`. `drivers/line.py` says what it must do. The
head of the file names the packages that it needs.
"""
