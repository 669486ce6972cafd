select count(*) as rows from public.bench_api
