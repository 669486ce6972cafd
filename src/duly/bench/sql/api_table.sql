-- What the bare endpoint writes into: one narrow row a request.
create table if not exists public.bench_api (
    id         uuid primary key,
    name       text not null,
    payload    jsonb not null,
    created_at timestamptz not null default pg_catalog.now()
)
