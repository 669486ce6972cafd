-- Submitting by SQL: the function duly.submit, and the roles that may call it. Such a role needs no other right, and
-- submits for its own tenant. See docs/sql.md.

-- The tenant for which a role that does not own the store submits, if it asks for `asked` (null: for its own).
create or replace function duly.tenant_of(caller name, asked text, is_command boolean) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    tenants text[];
begin
    -- A role that may write the tables is not restricted here.
    if pg_has_role(caller, current_user, 'USAGE') then
        return coalesce(asked, 'default');
    end if;
    select array[s.tenant] into tenants from duly.submitters s where s.role = caller;
    if not found then
        if has_table_privilege(caller, 'duly.jobs', 'INSERT') then
            return coalesce(asked, 'default');
        end if;
        select array_agg(distinct s.tenant) into tenants
        from duly.submitters s
        join pg_roles r on r.rolname = s.role
        where pg_has_role(caller, r.oid, 'USAGE');
    end if;
    if tenants is null then
        perform duly.refuse('tenant',
            format('role %I submits for no tenant; allow it with: duly submitter add', caller), 'insufficient_privilege');
    elsif asked is null and cardinality(tenants) > 1 then
        perform duly.refuse('tenant', format('role %I submits for tenants %s: say for which', caller,
            array_to_string(tenants, ', ')), 'insufficient_privilege');
    elsif asked is not null and not asked = any (tenants) then
        perform duly.refuse('tenant', format('role %I submits for tenant %s and not for %L', caller,
            array_to_string(tenants, ', '), left(asked, 100)), 'insufficient_privilege');
    end if;
    asked := coalesce(asked, tenants[1]);
    if is_command then
        perform from duly.submitters s
        join pg_roles r on r.rolname = s.role
        where s.tenant = asked and s.commands and pg_has_role(caller, r.oid, 'USAGE');
        if not found then
            perform duly.refuse('handler', format('role %I submits no commands: they have the rights of the worker that '
                'runs them', caller), 'insufficient_privilege');
        end if;
    end if;
    return asked;
end
$$;

-- Lets a role submit for a tenant, and nothing else.
create or replace function duly.allow_submit(role name, tenant text, commands boolean default false) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    wrong text;
begin
    perform duly.check_text('tenant', tenant, 100);
    if not exists (select from pg_roles r where r.rolname = allow_submit.role) then
        wrong := format('there is no role %I in PostgreSQL; make it with: create role', role);
    elsif pg_has_role(role, (select c.relowner from pg_class c where c.oid = 'duly.jobs'::regclass), 'USAGE') then
        wrong := format('%I owns the store, or is a superuser: no tenant would bind it', role);
    else
        -- Its other rights: its own, those of a group, and those of everyone.
        select format('%1$I may write or call more than duly.submit (%2$s): no tenant would bind it; first run: revoke all '
            'on all tables in schema duly from %1$I; revoke all on all functions in schema duly from %1$I', role,
            string_agg(distinct found.what, ', ')) into wrong
        from (
            select c.oid::regclass::text as what
            from pg_class c
            where c.relnamespace = 'duly'::regnamespace and c.relkind in ('r', 'p', 'v') and (
                has_table_privilege(role, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
                or has_any_column_privilege(role, c.oid, 'INSERT, UPDATE')
            )
            union all
            select p.oid::regproc::text
            from pg_proc p
            where p.pronamespace = 'duly'::regnamespace and p.proname <> 'submit'
                and p.proacl is not null -- not ours: everybody may call it
                and has_function_privilege(role, p.oid, 'EXECUTE')
        ) found
        having count(*) > 0;
    end if;
    if wrong is not null then
        raise exception using errcode = 'invalid_parameter_value', column = 'role',
            message = 'duly.allow_submit: role: ' || wrong;
    end if;
    insert into duly.submitters as s (role, tenant, commands, created_at)
    values (allow_submit.role, allow_submit.tenant, coalesce(allow_submit.commands, false), duly.now())
    on conflict on constraint submitters_pkey do update set tenant = excluded.tenant, commands = excluded.commands;
    execute format('grant usage on schema duly to %I', role);
    -- The owner of the functions need not be the owner of the schema, and then this grant was only a warning.
    if not has_schema_privilege(role, 'duly'::regnamespace, 'USAGE') then
        raise exception using errcode = 'invalid_parameter_value', column = 'role', message = format(
            'duly.allow_submit: role: %I may not use the schema; first let its owner run: grant usage on schema duly to %1$I',
            role);
    end if;
    execute format('grant execute on function duly.submit to %I', role);
end
$$;

-- Takes that right back. Returns whether the role had it.
create or replace function duly.disallow_submit(role name) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    was_there boolean;
begin
    delete from duly.submitters s where s.role = disallow_submit.role;
    was_there := found;
    if was_there and exists (select from pg_roles r where r.rolname = disallow_submit.role) then
        execute format('revoke execute on function duly.submit from %I', role);
        -- A role that may read something there keeps its usage of the schema.
        if not exists (
            select from pg_class c
            cross join lateral (
                select c.relacl union all select a.attacl from pg_attribute a where a.attrelid = c.oid
            ) given (acl)
            cross join lateral aclexplode(given.acl) right_of
            join pg_roles r on r.oid = right_of.grantee
            where c.relnamespace = 'duly'::regnamespace and r.rolname = disallow_submit.role
        ) then
            execute format('revoke usage on schema duly from %I', role);
        end if;
    end if;
    return was_there;
end
$$;

-- Whether a job with this fingerprint has the same content but for arguments that have the defaults of its task in one
-- and were left out in the other. `content` is what duly.submit makes a fingerprint of: the policy is its element 5, queue
-- and priority are 11 and 12. The rule is that of `Preparing.is_same`.
create or replace function duly.repeats_defaults(fingerprint bytea, content jsonb, offer jsonb) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with own (queue, priority, policy) as (
        select coalesce(offer -> 'queue', '"default"'), coalesce(offer -> 'priority', '5'), coalesce(offer -> 'policy', '{}')
    ),
    given (queue, priority, policy) as (
        select content -> 11, content -> 12, case jsonb_typeof(content -> 5) when 'object' then content -> 5 else '{}' end
    ),
    other (queue, priority, policy) as (
        -- With the defaults filled in.
        select case given.queue when '"default"' then own.queue else given.queue end,
            case given.priority when '5' then own.priority else given.priority end, own.policy || given.policy
        from own, given
        union all
        -- Without those that were repeated.
        select case given.queue when own.queue then '"default"' else given.queue end,
            case given.priority when own.priority then '5' else given.priority end,
            (
                select coalesce(jsonb_object_agg(field.key, field.value), '{}')
                from jsonb_each(given.policy) as field
                where field.value is distinct from own.policy -> field.key
            )
        from own, given
    )
    select exists (
        select from other
        where fingerprint = sha256(convert_to(jsonb_set(jsonb_set(jsonb_set(content, '{11}', other.queue), '{12}',
            other.priority), '{5}', coalesce(nullif(other.policy, '{}'), 'null'))::text, 'UTF8'))
    )
$$;

-- Submits a job from any language, in the caller's transaction. Returns its id.
--
-- The tenant is the caller's own if a role is bound to one (duly.submitters). The caller is the session's user, or the
-- role that it has set. A session may also be whatever role it has set, and can become again what it has left, so
-- neither lets it submit for a tenant that it could not submit for anyway. (Inside the function, current_user is the
-- store's owner.)
--
-- What the caller leaves out (null) of queue, priority and policy comes from the task, as its workers offer it.
--
-- A one-off of a Python task is stored whole at once. Everything else is stored paused, with a row in duly.sql_submits,
-- and a scheduler checks and plans it with the same code as the other interfaces, within a second of the commit.
create or replace function duly.submit(
    handler               text,
    payload               jsonb default '{}',
    schedule              text default null,
    name                  text default null,
    queue                 text default null,
    priority              integer default null,
    timezone              text default 'UTC',
    dedupe_key            text default null,
    run_at                timestamptz default null,
    tenant                text default null,
    payload_ref           text default null,
    start_at              timestamptz default null,
    end_at                timestamptz default null,
    max_runs              integer default null,
    labels                jsonb default null,
    policy                jsonb default null,
    allow_unknown_handler boolean default false
) returns uuid
language plpgsql
-- With its owner's rights, so that its callers need none. It uses neither functions that their search_path puts before
-- PostgreSQL's own nor their temporary tables.
security definer
set search_path = pg_catalog, pg_temp
-- Times are formatted in UTC, whatever the caller's zone: the same call is the same job from everywhere.
set timezone = 'UTC'
as $$
declare
    moment timestamptz := duly.now();
    caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    store record;
    new_id uuid;
    new_shard smallint;
    callee jsonb;
    task text := handler;
    title text := name;
    given_policy jsonb := nullif(policy, '{}');
    offer jsonb;
    filled_queue text;
    filled_priority integer;
    content jsonb;
    spelt text := btrim(coalesce(schedule, 'now'), E' \t\n\r\f\x0b');
    is_now boolean;
    is_planned boolean;
    print bytea;
    existing record;
    room bigint;
begin
    select s.shard_count, s.tenant_max_jobs, s.payload_max_bytes into store from duly.store s;

    -- Fields that any job must have.
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
        -- Python leaves defaults out before it measures, so it applies the exact limit; this one is a little wider.
        perform duly.check_json('handler', callee, 65536 + 100, '');
        title := coalesce(title, task);
    else
        perform duly.check_text('handler', handler, 200);
        title := coalesce(title, handler);
        -- As JSON, because a store without migration 0004 has no such column.
        select nullif(to_jsonb(h) -> 'defaults', 'null') into offer from duly.handlers h where h.name = submit.handler;
        if not found and not coalesce(allow_unknown_handler, false) and exists (select from duly.handlers) then
            perform duly.refuse('handler', format('no worker has a task %L; start a worker that has it, or set '
                'allow_unknown_handler', handler));
        end if;
    end if;
    -- Each check has its price, so fields left at their default are not checked.
    if name is not null then
        perform duly.check_text('name', name, 200);
    end if;
    if queue is not null and queue <> 'default' then
        perform duly.check_text('queue', queue, 100);
    end if;
    filled_queue := coalesce(queue, offer ->> 'queue', 'default');
    filled_priority := coalesce(priority, (offer ->> 'priority')::integer, 5);
    if caller <> current_user then
        tenant := duly.tenant_of(caller, tenant, task = 'command' and callee is not null);
    end if;
    tenant := coalesce(tenant, 'default');
    if tenant <> 'default' then
        perform duly.check_text('tenant', tenant, 100);
    end if;
    perform duly.check_bounds(tenant, task, callee is not null, filled_queue);
    if timezone is distinct from 'UTC' then
        perform duly.check_text('timezone', timezone, 100);
    end if;
    if priority not between 0 and 9 then
        perform duly.refuse('priority', format('must be 0 to 9, not %s', priority));
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
    if jsonb_typeof(offer -> 'policy') = 'object' then
        -- A field that was given wins, also if it has the general default, which is not stored.
        policy := nullif(((offer -> 'policy') - array(select jsonb_object_keys(given_policy))) || coalesce(policy, '{}'), '{}');
    end if;
    if labels is not null then
        if jsonb_typeof(labels) <> 'object' then
            perform duly.refuse('labels', 'must be an object of strings');
        elsif (select count(*) from jsonb_object_keys(labels)) > 32 then
            perform duly.refuse('labels', 'must be at most 32');
        elsif exists (
            select from jsonb_each(labels) as label (key, value)
            where jsonb_typeof(label.value) <> 'string' or char_length(label.key) not between 1 and 63
                or char_length(label.value #>> '{}') > 255
                or label.key || (label.value #>> '{}') ~ '[\u0001-\u001f\u007f-\u009f]'
        ) then
            perform duly.refuse('labels', 'must be strings of at most 255 characters under names of 1 to 63');
        end if;
        labels := nullif(labels, '{}');
    end if;
    if max_runs is not null and max_runs < 1 then
        perform duly.refuse('max_runs', 'must be 1 or more');
    end if;

    -- The time at which it runs.
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
    -- Jitter's offset follows from the job's id; Python computes it.
    is_planned := callee is null and (is_now or run_at is not null and not coalesce(policy, '{}') ? 'jitter_seconds')
        and not coalesce(policy, '{}') ?| array['idempotency_key_template', 'ping_url'];
    -- The names that duly/timing/zones.py accepts.
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

    -- The same dedupe_key with the same arguments is the same job, whatever the task's defaults were then and are now: so
    -- here those that were left out count as the general defaults.
    queue := coalesce(queue, 'default');
    priority := coalesce(priority, 5);
    if dedupe_key is not null then
        content := jsonb_build_array('duly.submit', handler, title, payload, spelt, given_policy,
            payload_ref, timezone, start_at, end_at, max_runs, queue, priority, labels);
        print := sha256(convert_to(content::text, 'UTF8'));
    end if;
    queue := filled_queue;
    priority := filled_priority;
    for attempt in 1..10 loop
        if dedupe_key is not null then
            select j.job_id, j.fingerprint into existing
            from duly.jobs j
            where j.tenant = submit.tenant and j.dedupe_key = submit.dedupe_key;
            if found then
                if existing.fingerprint is distinct from print
                    and not (offer is not null and duly.repeats_defaults(existing.fingerprint, content, offer)) then
                    raise exception using errcode = 'unique_violation', column = 'dedupe_key',
                        message = format('duly.submit: dedupe_key: %L is taken by job %s, whose content is different',
                            dedupe_key, existing.job_id);
                end if;
                return existing.job_id;
            end if;
        end if;
        new_id := duly.new_job_id(moment);
        new_shard := duly.shard_of(new_id, store.shard_count);
        room := duly.tenant_room(tenant, 1, store.tenant_max_jobs);
        if room < 1 then
            raise exception using errcode = 'program_limit_exceeded', column = 'tenant',
                message = format('duly.submit: tenant: %L has as many active or paused jobs as it may have', tenant);
        end if;
        insert into duly.jobs (job_id, shard, tenant, name, handler, target, payload, kind, schedule, policy, fingerprint,
            next_run_at, last_run_at, run_count, status, status_reason, created_at, updated_at,
            payload_ref, timezone, start_at, end_at, max_runs, queue, priority, dedupe_key, labels)
        values (new_id, new_shard, submit.tenant, title, task, callee, submit.payload, 'once', spelt, submit.policy, print,
            case when is_planned then submit.run_at end,
            case when is_planned and is_now then moment end,
            case when is_planned and is_now then 1 else 0 end,
            case when not is_planned then 'paused' when is_now then 'ended' else 'active' end,
            case when not is_planned then 'submitted by SQL, and not planned by a scheduler yet' end,
            moment, moment,
            submit.payload_ref, submit.timezone, submit.start_at, submit.end_at, submit.max_runs, submit.queue,
            submit.priority, submit.dedupe_key, submit.labels)
        on conflict do nothing;
        exit when found;
        -- The key was taken at this very moment: find its job.
        if attempt = 10 then
            raise exception using errcode = 'serialization_failure',
                message = format('duly.submit: dedupe_key: %L comes and goes; try again', dedupe_key);
        end if;
    end loop;

    if room is not null then
        insert into duly.tenant_jobs (tenant, job_id) values (submit.tenant, new_id);
        update duly.tenants t set jobs = t.jobs + 1 where t.tenant = submit.tenant;
    end if;
    -- As with every other door: recurring jobs and commands are noted, other one-offs are traffic. The schedule is not read
    -- here, so a text that is no time counts as one that recurs.
    if callee ->> 'type' = 'command' or not is_now and run_at is null and spelt !~ '^[0-9]{4}-' then
        insert into duly.audit (at, tenant, who, action, kind, object, job_id, after)
        values (moment, submit.tenant, jsonb_build_object('via', 'sql', 'actor', case when caller = session_user then caller
            else caller || ' (' || session_user || ')' end), 'submit', 'job', new_id::text, new_id,
            jsonb_build_object('name', title, 'handler', task, 'schedule', spelt, 'timezone', submit.timezone, 'queue',
                submit.queue));
    end if;
    if not is_planned then
        insert into duly.sql_submits (job_id, at, unnamed) values (new_id, moment, name is null);
        perform pg_notify('duly_submitted', '');
    elsif is_now then
        insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue)
        values (new_id, moment, moment, moment, new_shard, submit.priority, 0, 'queued', submit.queue);
        perform pg_notify('duly_work', queue);
    else
        perform duly.announce_due(array[new_shard], array[new_id], array[run_at]);
    end if;
    return new_id;
end
$$;
