"""Executes runs. Read in this order:

1. `worker`: one worker, and how its parts are connected;
2. `claimer`: takes runs from the store under one lease; `floors` says where its looks begin;
3. `executor`: calls handlers and decides each outcome; `execution` is the state of one attempt, `drivers` and `threads`
   are where handlers run, `retry` decides between retry and dead letters, `offers` about tasks that this worker lacks;
4. `completer`: writes outcomes and closes claims;
5. `leases`: extends leases from a thread of its own; `blocking` names a handler that blocks the event loop.

`handler/` has the parts that a Python handler uses, `targets/` calls endpoints and commands, `processes/` runs
programs that can be killed, `account` gives commands their user and environment.
"""
