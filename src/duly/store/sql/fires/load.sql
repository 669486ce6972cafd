-- Reads what falls due in slices of shards, one page per slice. A page is one row of concatenated bytes: ids and, in
-- the same order, due times in microseconds since 2000 (30,000 separate rows would cost the reader more than the
-- database).
--   $1 shards  $2 after this time  $3 up to this time  $4 page size
-- With ties: a page never ends between jobs due at the same time, so the next page starts after that time, and a
-- million jobs of one midnight are read in the index's own order, never sorted.
select slice.number, page.job_ids, page.dues
from unnest($1::smallint[], $2::timestamptz[], $3::timestamptz[]) with ordinality as slice (shard, after, upto, number)
cross join lateral (
    select string_agg(uuid_send(j.job_id), ''::bytea) as job_ids,
        string_agg(timestamptz_send(j.next_run_at), ''::bytea) as dues
    from (
        select job_id, next_run_at
        from duly.jobs
        -- The end is compared as a row, because the planner takes a plain range of unknown ends for a sliver: it would
        -- collect and sort all of it again for every page (8 ms per shard instead of 0.2 with a million jobs).
        where shard = slice.shard and next_run_at > slice.after and (shard, next_run_at) <= (slice.shard, slice.upto)
        order by next_run_at
        fetch first ($4::bigint) rows with ties
    ) j
) page
where page.job_ids is not null
