-- Stores the progress of running handlers.   $1 claim_ids  $2 ordinals  $3 fractions  $4 notes
-- Only for existing claims: a worker's report about a run that it lost is ignored.
insert into duly.progress (claim_id, ordinal, fraction, note, at)
select c.claim_id, said.ordinal, said.fraction, said.note, duly.now()
from unnest($1::uuid[], $2::int[], $3::real[], $4::text[]) as said (claim_id, ordinal, fraction, note)
cross join lateral (select claim_id from duly.claims where claim_id = said.claim_id limit 1) c
order by c.claim_id, said.ordinal
on conflict (claim_id, ordinal) do update set fraction = excluded.fraction, note = excluded.note, at = excluded.at
