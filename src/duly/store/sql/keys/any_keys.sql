-- Whether there ever was a key. Revoked and expired ones count: losing the last one must not open the door.
select exists (select from duly.api_keys) as any
