-- Pauses that end by themselves. A table of its own and not a column of duly.jobs: it is almost always empty, and fires
-- know nothing of it. A row is void as soon as the job is paused, resumed or cancelled anew, also by a node that does not
-- know this table: duly.job_changes has a later change then than `change_id`, the one that the pause wrote.
create table duly.pauses (
    job_id    uuid primary key,
    change_id bigint not null,
    until     timestamptz not null
);
create index pauses_until on duly.pauses (until);
