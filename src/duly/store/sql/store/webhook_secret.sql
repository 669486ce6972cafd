-- What calls of HTTP targets are signed with where no secret is configured.
select webhook_secret from duly.store
