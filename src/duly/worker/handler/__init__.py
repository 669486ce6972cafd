"""A Python handler's side of a run. Read in this order:

1. `task`: a registered function, and how a payload becomes its arguments;
2. `context`: `ctx`, the run as the handler sees it;
3. `transactions`, `progress`, `ledger`: the store, as `ctx` and the executor use it for a handler;
4. `errors`: turns any exception and any result into text that PostgreSQL accepts.
"""
