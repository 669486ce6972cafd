select count(*) as rows from bench_api
