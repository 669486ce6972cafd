-- What must be over before the end can be looked at. A claim whose runs have all ended lies there until its worker
-- closes it; it is not waited for by runs, but it must go too.
select (select count(*) from duly.runs)::int as runs, (select count(*) from duly.claims)::int as claims,
    (select count(*) from duly.catch_ups)::int as catch_ups,
    (select count(*) from duly.jobs where status = 'active' and next_run_at is not null)::int as planned
