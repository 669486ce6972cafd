-- Everything that was applied to the store; store/steps.py says what the numbers mean.
select version, name, checksum, applied_at from duly.migrations
