-- A database's clock may go back: at a promotion, or when it is set right. What happened by the later time stays.

-- How far tokens are ahead of the clock. A token that comes back from the future raises it, so that whoever gets the run
-- next has a greater one. (duly.new_claim_id adds it; see duly.heed_tokens.)
alter table duly.clock add column token_lead interval not null default interval '0';

-- See to it that every later token is greater than these, whose runs are about to be given to somebody else.
create function duly.heed_tokens(tokens uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog
as $$
declare
    latest timestamptz := (
        select max(timestamptz 'epoch' + interval '1 millisecond'
            * ('x' || left(replace(token::text, '-', ''), 12))::bit(48)::bigint::double precision)
        from unnest(tokens) as token
    ) + interval '1 millisecond';
begin
    -- Almost always false, and then nothing is written.
    if latest > (select clock_timestamp() + shift + token_lead from duly.clock) then
        update duly.clock
        set token_lead = latest - (clock_timestamp() + shift)
        where latest > clock_timestamp() + shift + token_lead;
    end if;
end
$$;

-- The latest moment of a job that has been dealt with: fired, skipped, missed or put off. Planned anew, the job goes on
-- after it, even where the clock has gone back to before it.
-- A week back is enough: only moments that are still to come by today's clock matter, and a row tells of a span that began
-- earlier only if nobody was there to fire for so long.
create function duly.dealt_with_until(job uuid) returns timestamptz
language sql volatile
set search_path = pg_catalog
as $$
    select max(one.at)
    from (
        select greatest(last_run_at, extra_at) as at from duly.jobs where job_id = $1
        union all
        select max(scheduled_at) from duly.runs where job_id = $1
        union all
        select max(last_at) from duly.catch_ups where job_id = $1
        union all
        select max(greatest(ended.scheduled_at, (ended.note ->> 'last')::timestamptz))
        from (
            select scheduled_at, note
            from duly.history
            where job_id = $1 and scheduled_at > duly.now() - interval '7 days'
            order by scheduled_at desc
            limit 100
        ) ended
    ) one
$$;
