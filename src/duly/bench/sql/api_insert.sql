insert into public.bench_api (id, name, payload) values ($1, $2, $3::jsonb)
