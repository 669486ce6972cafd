-- Writes that these keys were used. By id, and without those that another process is writing: it writes the same.
--   $1 key_ids
update duly.api_keys
set last_used_at = duly.now()
where key_id in (
    select key_id from duly.api_keys where key_id = any ($1::text[]) order by key_id for no key update skip locked
)
returning key_id
