"""The HTTP API and the live page, on top of `duly.operations`. Read in this order:

1. `server`: the app made of its parts. `binding`: the address it listens on. `connections`: limits per connection.
2. A request's way in: `guard` (hosts, origins, headers), `access` (keys, roles, rates), `declared` (routes check
   roles), `body` (reading JSON with bounds).
3. `routes/`: one file per group of calls, over `schemas` (bodies and answers), `documents` (values as JSON documents),
   `responses` and `problems` (errors as RFC 9457 documents).
4. `description` and `examples`: the OpenAPI description. `live`, `metrics`: pages and probes outside `/api/v1`.
"""
