-- The table of the bare endpoint: one narrow row per request.
create table if not exists public.bench_api (
    id         uuid primary key,
    name       text not null,
    payload    jsonb not null,
    created_at timestamptz not null default pg_catalog.now()
)
