-- API keys, and what a tenant may do and hold.

-- The secret itself is not stored: `hash` is the SHA-256 of the whole key, which is random enough that nothing slower
-- is needed. Rows of revoked keys stay, to show whose they were. Roles: `operator` may also submit commands, which
-- `write` may not; a `monitor` key belongs to no tenant (tenant '').
create table duly.api_keys (
    key_id       text primary key,
    hash         bytea not null,
    tenant       text not null,
    role         text not null check (role in ('read', 'write', 'operator', 'admin', 'monitor')),
    name         text,
    created_at   timestamptz not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,           -- to the minute or so: not a write per request
    constraint api_keys_tenant_check check ((tenant = '') = (role = 'monitor'))
);

-- A tenant's limits, where they differ from the settings (null: as the settings say), and its rights (null: anything
-- that the role of its keys allows).
create table duly.tenants (
    tenant              text primary key,
    max_jobs            bigint check (max_jobs >= 0),
    requests_per_second double precision check (requests_per_second > 0),
    created_at          timestamptz not null,
    updated_at          timestamptz not null,
    -- The number of the tenant's rows in duly.tenant_jobs, changed under this row's lock. Null: not counted yet.
    jobs                bigint,
    looked_upto         uuid,           -- the job up to which ended jobs were looked for,
    in_vain_at          timestamptz,    -- and when that last found none, by the server's own clock
    tasks               text[],         -- the tasks it may submit
    queues              text[],         -- the queues it may use
    commands            boolean         -- whether it may submit commands at all
) with (fillfactor = 50);

-- The jobs of tenants that have a limit, and only of those: each row takes one of the tenant's slots. A slot is given
-- back when another submit needs one and finds the job ended, not when the job ends: so neither fires nor completions
-- know of limits, no index over all jobs has to be kept for counting, and a tenant without a limit costs nothing.
create table duly.tenant_jobs (
    tenant text collate "C" not null,
    job_id uuid not null,
    primary key (tenant, job_id)
);

-- Counts a tenant's existing jobs, when its limit is new. This once, all jobs are read, in the order in which they lie:
-- Duly's own connections would follow an index.
create function duly.count_tenant_jobs(of_tenant text) returns void
language plpgsql
set enable_seqscan = on
set search_path = pg_catalog, pg_temp
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

-- The number of further jobs a tenant may have; null: any number. Locks the tenant's row if it has a limit, until the
-- transaction ends, so that submits of one tenant count one after the other. If there is no room for `wanted`, it looks
-- for ended jobs and gives their slots back: at most 50,000 jobs at a time, and the next look continues from there. A
-- look that found nothing is not repeated at once: a refusal must stay cheap however often it is asked for.
create function duly.tenant_room(of_tenant text, wanted bigint, default_max bigint) returns bigint
language plpgsql
-- Reads a page in the index's own order, even before the table was ever analysed.
set enable_bitmapscan = off
set enable_sort = off
set search_path = pg_catalog, pg_temp
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
        -- Job by job through primary keys, whatever sizes the planner assumes.
        page_ended := array(
            select one.job_id
            from unnest(page) as one (job_id)
            where coalesce((select j.shown_status from duly.job_status j where j.job_id = one.job_id), 'gone')
                not in ('active', 'paused')
        );
        delete from duly.tenant_jobs b
        where b.ctid = any (array(
            select slot.ctid
            from unnest(page_ended) as one (job_id)
            cross join lateral (
                select t.ctid from duly.tenant_jobs t where t.tenant = of_tenant and t.job_id = one.job_id limit 1
            ) slot
        ));
        get diagnostics given_back = row_count;
        update duly.tenants t
        set jobs = t.jobs - given_back, in_vain_at = case when given_back = 0 then clock_timestamp() end,
            looked_upto = case when cardinality(page) = 5000 then page[5000] end
        where t.tenant = of_tenant
        returning * into known;
        -- At the end of the table the next look starts from the front.
        seen := seen + greatest(cardinality(page), 1);
    end loop;
    return greatest(most - known.jobs, 0);
end
$$;

-- Whether a name is in a list of names; a null list contains every name. A name ending in * stands for all that begin
-- so.
create function duly.is_among(asked text, names text[]) returns boolean
language sql immutable
begin atomic
    select names is null or exists (
        select from unnest(names) as one (name)
        where asked = one.name or right(one.name, 1) = '*' and starts_with(asked, left(one.name, -1))
    );
end;

-- Refuses what a tenant may not submit. For duly.submit; the same rules are in duly/operations/rights.py.
create function duly.check_bounds(of_tenant text, task text, is_target boolean, of_queue text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    may record;
begin
    select t.tasks, t.queues, t.commands into may from duly.tenants t where t.tenant = of_tenant;
    if is_target and task = 'command' and not may.commands then
        perform duly.refuse('handler', format('tenant %L may not submit commands', of_tenant), 'insufficient_privilege');
    elsif not is_target and not duly.is_among(task, may.tasks) then
        perform duly.refuse('handler', format('tenant %L may not submit task %L', of_tenant, left(task, 100)),
            'insufficient_privilege');
    elsif not duly.is_among(of_queue, may.queues) then
        perform duly.refuse('queue', format('tenant %L may not use queue %L', of_tenant, left(of_queue, 100)),
            'insufficient_privilege');
    end if;
end
$$;
