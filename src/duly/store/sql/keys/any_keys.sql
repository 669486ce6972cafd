-- Whether there ever was a key. Revoked and expired keys count: losing the last one must not open the API to everyone.
select exists (select from duly.api_keys) as any
