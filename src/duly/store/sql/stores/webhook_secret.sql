-- The secret that signs calls of HTTP targets where none is configured.
select webhook_secret from duly.store
