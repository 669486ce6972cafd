-- The checks of duly.submit: it accepts what Python accepts, and stores it as Python would.

-- Refuses an argument of duly.submit.
create or replace function duly.refuse(field text, message text, code text default 'invalid_parameter_value') returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = code,
        message = format('duly.submit: %s: %s', field, message), column = field;
end
$$;

-- Refuses a string that is missing, empty, longer than `longest` characters, or contains control characters.
create or replace function duly.check_text(field text, value text, longest integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null or char_length(value) not between 1 and longest then
        perform duly.refuse(field, format('must have 1 to %s characters, this has %s', longest,
            coalesce(char_length(value)::text, 'none')));
    elsif value ~ '[\u0001-\u001f\u007f-\u009f]' then
        perform duly.refuse(field, 'must not contain control characters');
    end if;
end
$$;

-- Checks any JSON: not too large, not too deep, and no number that Python cannot read.
create or replace function duly.check_json(field text, value jsonb, largest bigint, advice text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    written text := value::text;
    size integer := octet_length(written);
begin
    if size > largest then
        perform duly.refuse(field, format('must be at most %s bytes as JSON, this has %s%s', largest, size, advice));
    end if;
    if size > 200 and char_length(written) - char_length(translate(written, '[{', '')) > 200 and exists (
        with recursive level (value, depth) as (
            select check_json.value, 1 where jsonb_typeof(check_json.value) in ('array', 'object')
            union all
            select child.value, level.depth + 1
            from level
            cross join lateral (
                select e.value from jsonb_array_elements(case jsonb_typeof(level.value) when 'array' then level.value end) e
                union all
                select e.value from jsonb_each(case jsonb_typeof(level.value) when 'object' then level.value end) e
            ) child
            where jsonb_typeof(child.value) in ('array', 'object') and level.depth <= 200
        )
        select from level where depth > 200
    ) then
        perform duly.refuse(field, 'must be nested at most 200 levels deep');
    end if;
    -- Python reads neither an integer of more than 4300 digits nor a fraction beyond the range of a float.
    if size > 308 and exists (
        select from jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') as number (value)
        cross join lateral (select ltrim(number.value::text, '-')) as digits (text)
        where char_length(digits.text) > 308 and case strpos(digits.text, '.')
            when 0 then char_length(digits.text) > 4300
            else digits.text::numeric >= 1.797693134862315807937e308
        end
    ) then
        perform duly.refuse(field, 'holds a number that is too large');
    end if;
end
$$;

-- Applies the rules of duly/checks.py to the alerts of a policy, and returns those that are set; null if none is.
create or replace function duly.stored_alerts(alerts jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    kept jsonb := '{}';
    alert record;
    rule record;
begin
    if alerts is null or jsonb_typeof(alerts) = 'null' then
        return null;
    elsif jsonb_typeof(alerts) <> 'object' then
        perform duly.refuse('alerts', 'must be an object such as {"late_seconds": 60}');
    end if;
    for alert in select key as name, value, value #>> '{}' as text from jsonb_each(alerts) loop
        select * into rule
        from (values
            ('late_seconds', 1::numeric, 315360000::numeric),
            ('overrun_seconds', 1, 315360000),
            ('not_finished_by', null, null),
            ('failures_in_row', 1, 1000),
            ('no_success_for', 1, 315360000)
        ) as known (name, low, high)
        where known.name = alert.name;
        if not found then
            perform duly.refuse('alerts.' || left(alert.name, 60), 'is not an alert');
        elsif jsonb_typeof(alert.value) = 'null' then
            continue;
        elsif rule.low is null then
            if jsonb_typeof(alert.value) <> 'string' or alert.text !~ '^([01][0-9]|2[0-3]):[0-5][0-9]$' then
                perform duly.refuse('alerts.' || alert.name, 'must be a time of day such as 06:30');
            end if;
            kept := kept || jsonb_build_object(alert.name, alert.value);
        elsif jsonb_typeof(alert.value) <> 'number' or alert.text::numeric <> trunc(alert.text::numeric) then
            perform duly.refuse('alerts.' || alert.name, 'must be a whole number');
        elsif alert.text::numeric not between rule.low and rule.high then
            perform duly.refuse('alerts.' || alert.name, format('must be %s to %s', rule.low, rule.high));
        else
            kept := kept || jsonb_build_object(alert.name, trunc(alert.text::numeric)::bigint);
        end if;
    end loop;
    return nullif(kept, '{}');
end
$$;

-- Applies the rules of duly/checks.py to the fields of a policy and returns the policy to store: only what differs from
-- the defaults, in Python's spelling. (Python also checks idempotency_key_template and ping_url: a job that has one of
-- them waits for that.)
create or replace function duly.stored_policy(policy jsonb) returns jsonb
language plpgsql
-- Formats a float as Python does: the shortest string that is the same number.
set extra_float_digits = 1
set search_path = pg_catalog, pg_temp
as $$
declare
    kept jsonb := '{}';
    field record;
    rule record;
    number numeric;
    path record;
    paths jsonb;
    alerts jsonb;
begin
    if jsonb_typeof(policy) <> 'object' then
        perform duly.refuse('policy', 'must be an object such as {"max_retries": 5}');
    end if;
    for field in select key as name, value, value #>> '{}' as text from jsonb_each(policy - 'secret_fields' - 'alerts') loop
        select * into rule
        from (values
            ('missed_window', '"RUN_ONCE"'::jsonb, array['SKIP', 'RUN_ONCE', 'RUN_ALL'], null::numeric, null::numeric, false),
            ('overlap', '"skip"', array['skip', 'queue', 'parallel'], null, null, false),
            ('retry_backoff', '"exponential"', array['immediate', 'linear', 'exponential'], null, null, false),
            ('dst_gap', '"shift"', array['shift', 'skip'], null, null, false),
            ('dst_fold', '"first"', array['first', 'second', 'both'], null, null, false),
            ('catch_up_window_seconds', 'null', null, 0, 315360000, true),
            ('max_missed', '100', null, 0, 100000, true),
            ('max_queued', '100', null, 0, 100000, true),
            ('max_retries', '3', null, 0, 10000, true),
            ('jitter_seconds', '0', null, 0, 86400, true),
            ('retry_delay_seconds', '30', null, 0, 315360000, false),
            ('retry_max_delay_seconds', '1800', null, 0, 315360000, false),
            ('timeout_seconds', '300', null, 0.001, 315360000, false),
            ('start_within_seconds', 'null', null, 1, 315360000, true),
            ('idempotency_key_template', '"{{job_id}}:{{scheduled_at_unix}}"', null, null, null, false),
            ('ping_url', 'null', null, null, null, false)
        ) as known (name, standard, choices, low, high, whole)
        where known.name = field.name;
        if not found then
            perform duly.refuse('policy.' || left(field.name, 60), 'is not a policy of a job');
        elsif rule.choices is not null then
            if jsonb_typeof(field.value) <> 'string' or not field.text = any (rule.choices) then
                perform duly.refuse(field.name, 'must be one of ' || array_to_string(rule.choices, ', '));
            end if;
        elsif rule.standard = 'null' and jsonb_typeof(field.value) = 'null' then
            null;
        elsif rule.low is null then
            if jsonb_typeof(field.value) <> 'string' then
                perform duly.refuse(field.name, 'must be a string');
            end if;
            perform duly.check_text(field.name, field.text, case field.name when 'ping_url' then 2048 else 500 end);
        elsif jsonb_typeof(field.value) <> 'number' then
            perform duly.refuse(field.name, 'must be a number');
        else
            number := field.text::numeric;
            if strpos(field.text, '.') > 0 then
                -- To Python this is a float. PostgreSQL refuses to cast numbers beyond the range of floats.
                number := case
                    when abs(number) < 2.4703282292062328e-324 then 0
                    when abs(number) > 1e300 then number
                    else number::float8::text::numeric
                end;
            end if;
            if number not between rule.low and rule.high then
                perform duly.refuse(field.name, format('must be %s to %s', rule.low, rule.high));
            elsif rule.whole and number <> trunc(number) then
                perform duly.refuse(field.name, 'must be a whole number');
            end if;
            field.value := to_jsonb(trim_scale(number));
        end if;
        if field.value <> rule.standard then
            kept := kept || jsonb_build_object(field.name, field.value);
        end if;
    end loop;
    alerts := duly.stored_alerts(policy -> 'alerts');
    if alerts is not null then
        kept := kept || jsonb_build_object('alerts', alerts);
    end if;
    if not policy ? 'secret_fields' then
        return nullif(kept, '{}');
    elsif jsonb_typeof(policy -> 'secret_fields') <> 'array' then
        perform duly.refuse('secret_fields', 'must be a list of paths such as ["card.number"]');
    end if;
    for path in select value, value #>> '{}' as text from jsonb_array_elements(policy -> 'secret_fields') loop
        if jsonb_typeof(path.value) <> 'string' then
            perform duly.refuse('secret_fields', 'must be a list of strings');
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
    return nullif(case when paths is null then kept else kept || jsonb_build_object('secret_fields', paths) end, '{}');
end
$$;
