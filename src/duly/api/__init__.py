"""HTTP: the REST API under `/api/v1`, the live page, and the probes."""
