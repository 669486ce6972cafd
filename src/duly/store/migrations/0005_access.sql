-- Who may ask, how much a tenant may hold, and submitting from SQL.

-- API keys. The secret itself is nowhere: `hash` is the SHA-256 of the whole key, which is random enough that nothing
-- slower is needed. Rows stay when a key is revoked, so that it can be seen whose it was.
create table duly.api_keys (
    key_id       text primary key,
    hash         bytea not null,
    tenant       text not null,
    role         text not null check (role in ('read', 'write', 'admin')),
    name         text,
    created_at   timestamptz not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz            -- to the minute or so: not a write per request
);

-- What a tenant may do, where that differs from the settings (null: as the settings say).
create table duly.tenants (
    tenant              text primary key,
    max_jobs            bigint check (max_jobs >= 0),
    requests_per_second double precision check (requests_per_second > 0),
    created_at          timestamptz not null,
    updated_at          timestamptz not null,
    -- Jobs that hold a place; see duly.tenant_jobs. Whoever counts holds the row's lock. Null: nobody has counted yet.
    jobs                bigint,
    looked_upto         uuid,           -- up to which job places to give back were looked for,
    in_vain_at          timestamptz     -- and when that found none, by the server's own clock
) with (fillfactor = 50);

-- The jobs of tenants that have a limit, and only of those: a row is a place taken. It is given back when somebody needs
-- one and finds the job over, not when the job ends: so neither fires nor completions know of limits, no index over all
-- jobs has to be kept for counting, and a tenant without a limit costs nothing.
create table duly.tenant_jobs (
    tenant text collate "C" not null,
    job_id uuid not null,
    primary key (tenant, job_id)
);

-- Count what a tenant has already, when its limit is new. This once, all jobs are read, and in the order in which they
-- lie: our own connections would follow an index.
create function duly.count_tenant_jobs(of_tenant text) returns void
language plpgsql
set enable_seqscan = on
as $$
begin
    insert into duly.tenant_jobs (tenant, job_id)
    select of_tenant, j.job_id from duly.jobs j where j.tenant = of_tenant and j.status in ('active', 'paused')
    order by j.job_id
    on conflict do nothing;
    insert into duly.tenant_jobs (tenant, job_id)
    select of_tenant, live.job_id
    from (select r.job_id from duly.runs r union select unnest(c.job_ids) from duly.claims c) live
    cross join lateral (
        select j.tenant, j.shown_status from duly.job_status j where j.job_id = live.job_id limit 1
    ) j
    where j.tenant = of_tenant and j.shown_status = 'active'
    on conflict do nothing;
    update duly.tenants t
    set jobs = (select count(*) from duly.tenant_jobs b where b.tenant = of_tenant)
    where t.tenant = of_tenant;
end
$$;

-- How many more jobs a tenant may have; null: any number. Locks the tenant's row if it has a limit, until the transaction
-- ends, so that submits of one tenant count one after the other. Where there is no room for `wanted`, it looks for jobs
-- that are over, and gives their places back: at most 50,000 jobs at a time, and the next look goes on from there. A look
-- that found nothing is not repeated at once: a refusal must stay cheap however often somebody asks for it.
create function duly.tenant_room(of_tenant text, wanted bigint, default_max bigint) returns bigint
language plpgsql
-- A page is read in the index's own order, also before the table was ever analysed.
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    known duly.tenants;
    most bigint;
    page uuid[];
    page_ended uuid[];
    seen bigint := 0;
    given_back bigint;
begin
    loop
        select * into known from duly.tenants t where t.tenant = of_tenant for no key update;
        exit when found;
        if default_max is null then
            return null;
        end if;
        insert into duly.tenants (tenant, created_at, updated_at)
        values (of_tenant, duly.now(), duly.now())
        on conflict do nothing;
    end loop;
    most := coalesce(known.max_jobs, default_max);
    if most is null then
        return null;
    end if;
    if known.jobs is null then
        perform duly.count_tenant_jobs(of_tenant);
        select * into known from duly.tenants t where t.tenant = of_tenant;
    end if;
    if clock_timestamp() < known.in_vain_at + least(known.jobs / 50000.0, 1) * interval '1 second' then
        return greatest(most - known.jobs, 0);
    end if;
    while known.jobs + wanted > most and seen < least(known.jobs, 50000) loop
        page := array(
            select b.job_id
            from duly.tenant_jobs b
            where b.tenant = of_tenant and b.job_id > coalesce(known.looked_upto, '00000000-0000-0000-0000-000000000000')
            order by b.job_id
            limit 5000
        );
        -- Job by job through primary keys, whatever the planner thinks of the sizes.
        page_ended := array(
            select one.job_id
            from unnest(page) as one (job_id)
            where coalesce((select j.shown_status from duly.job_status j where j.job_id = one.job_id), 'gone')
                not in ('active', 'paused')
        );
        delete from duly.tenant_jobs b
        where b.ctid = any (array(
            select place.ctid
            from unnest(page_ended) as one (job_id)
            cross join lateral (
                select t.ctid from duly.tenant_jobs t where t.tenant = of_tenant and t.job_id = one.job_id limit 1
            ) place
        ));
        get diagnostics given_back = row_count;
        update duly.tenants t
        set jobs = t.jobs - given_back, in_vain_at = case when given_back = 0 then clock_timestamp() end,
            looked_upto = case when cardinality(page) = 5000 then page[5000] end
        where t.tenant = of_tenant
        returning * into known;
        -- At the end of the table it begins again from the front.
        seen := seen + greatest(cardinality(page), 1);
    end loop;
    return greatest(most - known.jobs, 0);
end
$$;

-- Jobs that duly.submit has stored and Python has yet to check and plan: recurring ones, and those that call something
-- else than a Python task. They are paused until then. Almost always empty.
create table duly.unplanned (
    job_id uuid primary key,
    at     timestamptz not null
);

-- Refuse an argument of duly.submit.
create function duly.refuse(field text, message text) returns void
language plpgsql
as $$
begin
    raise exception using errcode = 'invalid_parameter_value',
        message = format('duly.submit: %s: %s', field, message), column = field;
end
$$;

create function duly.check_text(field text, value text, longest integer) returns void
language plpgsql
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

-- The rules of duly/checks.py for the fields of a policy. The idempotency_key_template is checked there too, so a job
-- that has one of its own waits for Python.
create function duly.check_policy(policy jsonb) returns void
language plpgsql
as $$
declare
    field record;
    rule record;
begin
    if jsonb_typeof(policy) <> 'object' then
        perform duly.refuse('policy', 'must be an object such as {"max_retries": 5}');
    end if;
    for field in select key as name, value, value #>> '{}' as text from jsonb_each(policy) loop
        select * into rule
        from (values
            ('missed_window', array['SKIP', 'RUN_ONCE', 'RUN_ALL'], null::numeric, null::numeric, false),
            ('overlap', array['skip', 'queue', 'parallel'], null, null, false),
            ('retry_backoff', array['immediate', 'linear', 'exponential'], null, null, false),
            ('dst_gap', array['shift', 'skip'], null, null, false),
            ('dst_fold', array['first', 'second', 'both'], null, null, false),
            ('catch_up_window_seconds', null, 0, 315360000, true),
            ('max_missed', null, 0, 100000, true),
            ('max_queued', null, 0, 100000, true),
            ('max_retries', null, 0, 10000, true),
            ('jitter_seconds', null, 0, 86400, true),
            ('retry_delay_seconds', null, 0, 315360000, false),
            ('retry_max_delay_seconds', null, 0, 315360000, false),
            ('timeout_seconds', null, 0.001, 315360000, false),
            ('idempotency_key_template', null, null, null, false)
        ) as known (name, choices, low, high, whole)
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
        elsif field.text::numeric not between rule.low and rule.high then
            perform duly.refuse(field.name, format('must be %s to %s', rule.low, rule.high));
        elsif rule.whole and field.text::numeric <> trunc(field.text::numeric) then
            perform duly.refuse(field.name, 'must be a whole number');
        end if;
    end loop;
end
$$;

-- What every payload must be: not too large, not too deep, and no number that Python refuses to read.
create function duly.check_payload(payload jsonb) returns void
language plpgsql
as $$
declare
    written text := payload::text;
    size integer := octet_length(written);
begin
    if size > 262144 then
        perform duly.refuse('payload', format('must be at most 262144 bytes as JSON, this has %s; use payload_ref', size));
    end if;
    if size > 200 and char_length(written) - char_length(translate(written, '[{', '')) > 200 and exists (
        with recursive level (value, depth) as (
            select payload, 1 where jsonb_typeof(payload) in ('array', 'object')
            union all
            select child.value, level.depth + 1
            from level
            cross join lateral (
                select value from jsonb_array_elements(case jsonb_typeof(level.value) when 'array' then level.value end)
                union all
                select value from jsonb_each(case jsonb_typeof(level.value) when 'object' then level.value end)
            ) child
            where jsonb_typeof(child.value) in ('array', 'object') and level.depth <= 200
        )
        select from level where depth > 200
    ) then
        perform duly.refuse('payload', 'must be nested at most 200 levels deep');
    end if;
    if size > 4000 and exists (
        select from jsonb_path_query(payload, '$.** ? (@.type() == "number")') as number (value)
        where char_length(number.value::text) > 4000
    ) then
        perform duly.refuse('payload', 'must not contain numbers of more than 4000 digits');
    end if;
end
$$;

-- Submit a job from any language, in the caller's transaction. Returns its id. See docs/sql.md.
--
-- A one-off of a Python task is whole at once. Everything else is stored paused, with a row in duly.unplanned, and a
-- scheduler checks and plans it with the same code as the other interfaces, within a second of the commit.
create function duly.submit(
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
as $$
declare
    moment timestamptz := duly.now();
    new_id uuid;
    new_shard smallint;
    callee jsonb;
    task text := handler;
    title text := name;
    spelt text := btrim(coalesce(schedule, 'now'), E' \t\n\r\f\v');
    is_now boolean;
    is_planned boolean;
    print bytea;
    existing record;
    room bigint;
begin
    -- What any job must have.
    if ltrim(handler) like '{%' then
        begin
            callee := handler::jsonb;
        exception when others then
            perform duly.refuse('handler', 'begins like an object and is not JSON');
        end;
        task := callee ->> 'type';
        if task is null or task not in ('http', 'command') then
            perform duly.refuse('handler.type', 'must be http or command');
        elsif octet_length(callee::text) > 65536 then
            perform duly.refuse('handler', 'must be at most 65536 bytes as JSON');
        end if;
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
    perform duly.check_payload(payload);
    if payload_ref is not null then
        perform duly.check_text('payload_ref', payload_ref, 2048);
    end if;
    if dedupe_key is not null then
        perform duly.check_text('dedupe_key', dedupe_key, 200);
    end if;
    if policy is not null then
        perform duly.check_policy(policy);
        policy := nullif(policy, '{}');
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
    is_planned := callee is null and (is_now or run_at is not null) and not coalesce(policy, '{}') ? 'idempotency_key_template';
    if is_planned and timezone <> 'UTC' and not exists (select from pg_timezone_names z where z.name = submit.timezone) then
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
            title, queue, priority, start_at, end_at, max_runs, labels, policy)::text, 'UTF8'));
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
        new_shard := duly.shard_of(new_id, (select s.shard_count from duly.store s));
        room := duly.tenant_room(tenant, 1, null);
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
        insert into duly.unplanned (job_id, at) values (new_id, moment);
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
