-- Roles may call only what they were granted.
revoke execute on all functions in schema duly from public;
