-- What duly.submit takes is what Python takes, and it is stored as Python would store it.

-- A whole number of a policy, whatever somebody wrote there: no statement over many jobs may fail for one of them.
create function duly.whole(policy jsonb, field text, otherwise integer) returns integer
language sql immutable
as $$
    select case jsonb_typeof(policy -> field)
        when 'number' then least(greatest((policy ->> field)::numeric, 0::numeric), 1000000000::numeric)::integer
        else otherwise
    end
$$;

-- Settings of Python's side that duly.submit heeds too. The scheduler that does the upkeep writes them down when it
-- begins; null: nobody has said so, and the settings' own defaults hold.
alter table duly.store add column tenant_max_jobs bigint, add column payload_max_bytes bigint;

-- Whether the job was submitted without a name: an endpoint and a command are then named by what they call.
alter table duly.unplanned add column unnamed boolean not null default false;

-- What any JSON must be: not too large, not too deep, and no number that Python cannot read.
create function duly.check_json(field text, value jsonb, largest bigint, advice text) returns void
language plpgsql
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
    -- A whole number of more than 4300 digits, and a fraction beyond what a float can hold.
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
drop function duly.check_payload(jsonb);

-- The rules of duly/checks.py for the fields of a policy, and what of it is stored: only what differs from the defaults,
-- in Python's spelling. (The idempotency_key_template is checked there too: a job that has one of its own waits for it.)
drop function duly.check_policy(jsonb);
create function duly.stored_policy(policy jsonb) returns jsonb
language plpgsql
-- With this a float is written as Python writes it: the shortest text that is the same number.
set extra_float_digits = 1
as $$
declare
    kept jsonb := '{}';
    field record;
    rule record;
    number numeric;
begin
    if jsonb_typeof(policy) <> 'object' then
        perform duly.refuse('policy', 'must be an object such as {"max_retries": 5}');
    end if;
    for field in select key as name, value, value #>> '{}' as text from jsonb_each(policy) loop
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
            ('idempotency_key_template', '"{{job_id}}:{{scheduled_at_unix}}"', null, null, null, false)
        ) as known (name, standard, choices, low, high, whole)
        where known.name = field.name;
        if not found then
            perform duly.refuse('policy.' || left(field.name, 60), 'is not a policy of a job');
        elsif rule.choices is not null then
            if jsonb_typeof(field.value) <> 'string' or not field.text = any (rule.choices) then
                perform duly.refuse(field.name, 'must be one of ' || array_to_string(rule.choices, ', '));
            end if;
        elsif rule.low is null then
            if jsonb_typeof(field.value) <> 'string' then
                perform duly.refuse(field.name, 'must be a text');
            end if;
            perform duly.check_text(field.name, field.text, 500);
        elsif field.name = 'catch_up_window_seconds' and jsonb_typeof(field.value) = 'null' then
            null;
        elsif jsonb_typeof(field.value) <> 'number' then
            perform duly.refuse(field.name, 'must be a number');
        else
            number := field.text::numeric;
            if strpos(field.text, '.') > 0 then
                -- To Python this is a float. PostgreSQL refuses to make floats of what lies beyond their range.
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
    return nullif(kept, '{}');
end
$$;

-- Policies that duly.submit stored in another spelling than Python's, such as 3.0 for 3. What it would refuse today was
-- never stored by it, and stays as it is.
do $$
declare
    spelt text;
    mended jsonb;
begin
    for spelt in select distinct j.policy::text from duly.jobs j where j.policy::text ~ '[0-9][.][0-9]' loop
        begin
            mended := duly.stored_policy(spelt::jsonb);
        exception when invalid_parameter_value then
            continue;
        end;
        if mended::text is distinct from spelt then
            update duly.jobs j set policy = mended where j.policy::text = spelt;
        end if;
    end loop;
end
$$;

-- Submit a job from any language, in the caller's transaction. Returns its id. See docs/sql.md.
--
-- A one-off of a Python task is whole at once. Everything else is stored paused, with a row in duly.unplanned, and a
-- scheduler checks and plans it with the same code as the other interfaces, within a second of the commit.
create or replace function duly.submit(
    handler               text,
    payload               jsonb default '{}',
    schedule              text default null,
    name                  text default null,
    queue                 text default 'default',
    priority              integer default 5,
    timezone              text default 'UTC',
    dedupe_key            text default null,
    run_at                timestamptz default null,
    tenant                text default 'default',
    payload_ref           text default null,
    start_at              timestamptz default null,
    end_at                timestamptz default null,
    max_runs              integer default null,
    labels                jsonb default null,
    policy                jsonb default null,
    allow_unknown_handler boolean default false
) returns uuid
language plpgsql
-- Whatever the caller's search_path puts in front of the server's own functions is not asked.
set search_path = pg_catalog
-- Times are written in UTC, whatever the caller's zone: the same call is the same job from everywhere.
set timezone = 'UTC'
as $$
declare
    moment timestamptz := duly.now();
    store record;
    new_id uuid;
    new_shard smallint;
    callee jsonb;
    task text := handler;
    title text := name;
    given_policy jsonb := nullif(policy, '{}');
    spelt text := btrim(coalesce(schedule, 'now'), E' \t\n\r\f\x0b');
    is_now boolean;
    is_planned boolean;
    print bytea;
    existing record;
    room bigint;
begin
    select s.shard_count, s.tenant_max_jobs, s.payload_max_bytes into store from duly.store s;

    -- What any job must have.
    if ltrim(handler, E' \t\n\r') like '{%' then
        begin
            callee := handler::jsonb;
        exception when others then
            perform duly.refuse('handler', 'begins like an object and is not JSON');
        end;
        task := callee ->> 'type';
        if task is null or task not in ('http', 'command') then
            perform duly.refuse('handler.type', 'must be http or command');
        end if;
        -- What Python leaves out when it is the default is counted here, so the exact limit is for Python to say.
        perform duly.check_json('handler', callee, 65536 + 100, '');
        title := coalesce(title, task);
    else
        perform duly.check_text('handler', handler, 200);
        title := coalesce(title, handler);
        if not coalesce(allow_unknown_handler, false) and exists (select from duly.handlers)
            and not exists (select from duly.handlers h where h.name = submit.handler) then
            perform duly.refuse('handler', format('no worker has a task %L; start a worker that has it, or set '
                'allow_unknown_handler', handler));
        end if;
    end if;
    perform duly.check_text('name', title, 200);
    perform duly.check_text('queue', queue, 100);
    perform duly.check_text('tenant', tenant, 100);
    perform duly.check_text('timezone', timezone, 100);
    if priority is null or priority not between 0 and 9 then
        perform duly.refuse('priority', format('must be 0 to 9, not %s', coalesce(priority::text, 'null')));
    end if;
    if payload is null then
        perform duly.refuse('payload', 'must be JSON, not null (for a JSON null give ''null'')');
    end if;
    perform duly.check_json('payload', payload, coalesce(store.payload_max_bytes, 262144), '; use payload_ref');
    if payload_ref is not null then
        perform duly.check_text('payload_ref', payload_ref, 2048);
    end if;
    if dedupe_key is not null then
        perform duly.check_text('dedupe_key', dedupe_key, 200);
    end if;
    if policy is not null then
        policy := duly.stored_policy(policy);
    end if;
    if labels is not null then
        if jsonb_typeof(labels) <> 'object' then
            perform duly.refuse('labels', 'must be an object of texts');
        elsif (select count(*) from jsonb_object_keys(labels)) > 32 then
            perform duly.refuse('labels', 'must be at most 32');
        elsif exists (
            select from jsonb_each(labels) as label (key, value)
            where jsonb_typeof(label.value) <> 'string' or char_length(label.key) not between 1 and 63
                or char_length(label.value #>> '{}') > 255
                or label.key || (label.value #>> '{}') ~ '[\u0001-\u001f\u007f-\u009f]'
        ) then
            perform duly.refuse('labels', 'must be texts of at most 255 characters under names of 1 to 63');
        end if;
        labels := nullif(labels, '{}');
    end if;
    if max_runs is not null and max_runs < 1 then
        perform duly.refuse('max_runs', 'must be 1 or more');
    end if;

    -- When it is to run.
    if run_at is not null and schedule is not null then
        perform duly.refuse('run_at', 'cannot be given together with schedule');
    elsif char_length(spelt) not between 1 and 20000 then
        perform duly.refuse('schedule', 'must have 1 to 20000 characters');
    end if;
    perform duly.refuse(bound.field, 'must lie between the years 1900 and 9999')
    from (values ('run_at', run_at), ('start_at', start_at), ('end_at', end_at)) as bound (field, value)
    where bound.value not between '1900-01-01 00:00:00+00' and '9999-12-31 00:00:00+00';
    if end_at <= start_at then
        perform duly.refuse('end_at', 'must be after start_at');
    end if;
    is_now := run_at is null and lower(spelt) = 'now';
    if is_now or run_at is not null then
        perform duly.refuse(bound.field, 'is for recurring jobs, and this one runs once: leave it out')
        from (values ('start_at', start_at is not null), ('end_at', end_at is not null), ('max_runs', max_runs is not null))
            as bound (field, given)
        where bound.given;
    end if;
    -- The offset that jitter gives to a job follows from its id, by a sum that Python does.
    is_planned := callee is null and (is_now or run_at is not null and not coalesce(policy, '{}') ? 'jitter_seconds')
        and not coalesce(policy, '{}') ? 'idempotency_key_template';
    -- The names that duly/timing/zones.py takes.
    if is_planned and timezone <> 'UTC' and (
        char_length(timezone) > 64 or timezone !~ '^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}$'
        or timezone in ('localtime', 'posixrules', 'Factory', 'leapseconds', 'leap-seconds', 'tzdata', 'zone')
        or timezone like 'right/%' or timezone like 'posix/%'
        or not exists (select from pg_timezone_names z where z.name = submit.timezone)
    ) then
        perform duly.refuse('timezone', format('%L is not a time zone', timezone));
    end if;
    if run_at is not null then
        spelt := replace(to_char(run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '.000000', '');
    elsif is_now then
        spelt := 'now';
    end if;

    -- The same key again: the same arguments are the same job.
    if dedupe_key is not null then
        print := sha256(convert_to(jsonb_build_array('duly.submit', handler, payload, payload_ref, spelt, timezone,
            title, queue, priority, start_at, end_at, max_runs, labels, given_policy)::text, 'UTF8'));
    end if;
    for attempt in 1..10 loop
        if dedupe_key is not null then
            select j.job_id, j.fingerprint into existing
            from duly.jobs j
            where j.tenant = submit.tenant and j.dedupe_key = submit.dedupe_key;
            if found then
                if existing.fingerprint is distinct from print then
                    raise exception using errcode = 'unique_violation', column = 'dedupe_key',
                        message = format('duly.submit: dedupe_key: %L is taken by job %s, whose content is different',
                            dedupe_key, existing.job_id);
                end if;
                return existing.job_id;
            end if;
        end if;
        new_id := (lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0') || '7'
            || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;
        new_shard := duly.shard_of(new_id, store.shard_count);
        room := duly.tenant_room(tenant, 1, store.tenant_max_jobs);
        if room < 1 then
            raise exception using errcode = 'program_limit_exceeded', column = 'tenant',
                message = format('duly.submit: tenant: %L has as many active or paused jobs as it may have', tenant);
        end if;
        insert into duly.jobs (job_id, shard, tenant, name, handler, target, payload, payload_ref, kind, schedule,
            timezone, start_at, end_at, max_runs, queue, priority, policy, labels, dedupe_key, fingerprint, next_run_at,
            last_run_at, run_count, status, status_reason, created_at, updated_at)
        values (new_id, new_shard, submit.tenant, title, task, callee, submit.payload,
            submit.payload_ref, 'once', spelt, submit.timezone, submit.start_at, submit.end_at, submit.max_runs,
            submit.queue, submit.priority, submit.policy, submit.labels, submit.dedupe_key, print,
            case when is_planned then submit.run_at end,
            case when is_planned and is_now then moment end,
            case when is_planned and is_now then 1 else 0 end,
            case when not is_planned then 'paused' when is_now then 'ended' else 'active' end,
            case when not is_planned then 'submitted by SQL, and not planned by a scheduler yet' end,
            moment, moment)
        on conflict do nothing;
        exit when found;
        -- The key was taken in this very moment: look whose it is.
        if attempt = 10 then
            raise exception using errcode = 'serialization_failure',
                message = format('duly.submit: dedupe_key: %L comes and goes; try again', dedupe_key);
        end if;
    end loop;

    if room is not null then
        insert into duly.tenant_jobs (tenant, job_id) values (submit.tenant, new_id);
        update duly.tenants t set jobs = t.jobs + 1 where t.tenant = submit.tenant;
    end if;
    if not is_planned then
        insert into duly.unplanned (job_id, at, unnamed) values (new_id, moment, name is null);
        perform pg_notify('duly_submitted', '');
    elsif is_now then
        insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
        values (new_id, moment, moment, moment, new_shard, submit.priority, 0, 'queued', submit.queue);
        perform pg_notify('duly_work', queue);
    elsif run_at <= moment + interval '15 minutes' then
        perform pg_notify('duly_due', new_shard || ':' || new_id || ':' || (extract(epoch from run_at) * 1e6)::bigint);
    end if;
    return new_id;
end
$$;

-- A time that Python has no word for makes a whole page of jobs unreadable, and a queue that is too long for a notification
-- fails every statement that tells of it. No interface stores either; now no hand does. Rows that are there are not read.
alter table duly.jobs add constraint jobs_representable check (
    greatest(created_at, updated_at, next_run_at, last_run_at, extra_at, start_at, end_at) < '9999-12-31 23:59:59+00'
    and least(created_at, updated_at, next_run_at, last_run_at, extra_at, start_at, end_at) > '1800-01-01 00:00:00+00'
    and octet_length(queue) between 1 and 400
) not valid;
