-- Stores lines of runs.
--   $1 job_ids  $2 scheduled_ats  $3 claim_ids  $4 parts  $5 attempts  $6 last_lines  $7 ended  $8 lines
-- Sent again after a lost answer it changes nothing: a part is only replaced by one that goes further.
insert into duly.run_logs as kept
    (job_id, scheduled_at, claim_id, part, attempt, last_line, ended, lines, kept_at)
select said.*, duly.now()
from unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::int[], $5::smallint[], $6::int[], $7::bool[], $8::text[]) as said
on conflict (job_id, scheduled_at, claim_id, part) do update
set last_line = excluded.last_line, ended = excluded.ended, lines = excluded.lines, kept_at = excluded.kept_at
where excluded.last_line > kept.last_line or (excluded.ended and not kept.ended)
