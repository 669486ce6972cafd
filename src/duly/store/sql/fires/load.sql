-- What falls due in slices of shards, a page of each. A page is one row of joined bytes: ids and, beside them in the same
-- order, due times in microseconds since 2000 (30,000 rows of their own would cost the reader more than the database).
--   $1 shards  $2 after this moment  $3 up to this one  $4 page size
-- With ties: a page never ends between jobs of the same moment, so the next one begins after that moment, and a million
-- jobs of one midnight are read in the index's own order, never sorted.
select slice.number, page.job_ids, page.dues
from unnest($1::smallint[], $2::timestamptz[], $3::timestamptz[]) with ordinality as slice (shard, after, upto, number)
cross join lateral (
    select string_agg(uuid_send(j.job_id), ''::bytea) as job_ids,
        string_agg(timestamptz_send(j.next_run_at), ''::bytea) as dues
    from (
        select job_id, next_run_at
        from duly.jobs
        -- The end as a row, because of a plain range of unknown ends the planner believes that it is a sliver: it would
        -- gather all of it and sort it, for every page again (8 ms a shard instead of 0.2 with a million jobs).
        where shard = slice.shard and next_run_at > slice.after and (shard, next_run_at) <= (slice.shard, slice.upto)
        order by next_run_at
        fetch first ($4::bigint) rows with ties
    ) j
) page
where page.job_ids is not null
