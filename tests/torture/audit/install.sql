-- The audit, and the table that handlers write to in ctx.transaction(). Neither has a key but the order, so that a row
-- that is written twice is there twice.
create schema torture;
create table torture.audit (
    n    bigint generated always as identity,
    txid bigint not null default pg_current_xact_id()::text::bigint,
    at   timestamptz not null default clock_timestamp(),
    tbl  text not null,
    op   text not null,
    old  jsonb,
    new  jsonb
);
create table torture.effects (
    n            bigint generated always as identity,
    at           timestamptz not null default clock_timestamp(),
    run_id       text not null,
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    token        text not null,
    attempt      integer not null
);

-- Columns that no promise is about are left out of a job's document: they would be half of the audit.
create function torture.note() returns trigger
language plpgsql security definer
as $$
declare
    without text[] := case tg_argv[0] when 'jobs' then array['payload', 'payload_ref', 'target', 'labels', 'fingerprint']
        when 'dead_letters' then array['payload', 'payload_ref', 'target'] else array[]::text[] end;
begin
    insert into torture.audit (tbl, op, old, new)
    values (tg_argv[0], lower(tg_op),
        case when tg_op <> 'INSERT' then to_jsonb(old) - without end,
        case when tg_op <> 'DELETE' then to_jsonb(new) - without end);
    return null;
end
$$;

grant usage on schema torture to public;
grant insert, select on torture.effects to public;
