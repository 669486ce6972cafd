-- Counts the work that must be over before the final state is exported. A claim whose runs have all ended stays until its
-- worker closes it; no run waits for it, but it must be gone too.
select (select count(*) from duly.runs)::int as runs, (select count(*) from duly.claims)::int as claims,
    (select count(*) from duly.catch_ups)::int as catch_ups,
    (select count(*) from duly.jobs where status = 'active' and next_run_at is not null)::int as planned
