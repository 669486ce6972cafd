-- What of a dead letter's payload is never shown. It is kept with the letter: its job may be gone, or say otherwise since.
alter table duly.dead_letters add column secret_fields jsonb;

-- A policy may name fields of the payload that are secret: a list of paths, by the rules of duly/checks.py, and in order.
alter function duly.stored_policy(jsonb) rename to stored_plain_policy;
create function duly.stored_policy(policy jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    kept jsonb;
    paths jsonb;
    path record;
begin
    if policy is null or jsonb_typeof(policy) <> 'object' or not policy ? 'secret_fields' then
        return duly.stored_plain_policy(policy);
    end if;
    kept := duly.stored_plain_policy(policy - 'secret_fields');
    if jsonb_typeof(policy -> 'secret_fields') <> 'array' then
        perform duly.refuse('secret_fields', 'must be a list of paths such as ["card.number"]');
    end if;
    for path in select value, value #>> '{}' as text from jsonb_array_elements(policy -> 'secret_fields') loop
        if jsonb_typeof(path.value) <> 'string' then
            perform duly.refuse('secret_fields', 'must be a list of texts');
        end if;
        perform duly.check_text('secret_fields', path.text, 200);
        if path.text !~ '^([^.\\]|\\.)+(\.([^.\\]|\\.)+)*$' then
            perform duly.refuse('secret_fields', 'must be names with dots between them, as in card.number');
        end if;
    end loop;
    select jsonb_agg(text order by text collate "C") into paths
    from (select distinct jsonb_array_elements_text(policy -> 'secret_fields') as text) given;
    if jsonb_array_length(paths) > 32 then
        perform duly.refuse('secret_fields', 'must be at most 32');
    end if;
    return case when paths is null then kept else coalesce(kept, '{}') || jsonb_build_object('secret_fields', paths) end;
end
$$;
revoke execute on function duly.stored_policy(jsonb) from public;
