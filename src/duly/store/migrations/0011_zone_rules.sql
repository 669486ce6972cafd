-- The time-zone data by which jobs are planned, a row for each version that was ever in force; the newest is in force now.
-- Whole, because a plan says what local time it stands for only together with the rules by which it was made; and so that
-- all schedulers of a store plan by the same rules, whatever their machines have. A version that is here once never takes
-- over again: nodes with different data do not fight.
create table duly.zone_rules (
    version     text primary key,       -- a release such as 2026a, or a digest where the data has no name
    noted_at    timestamptz not null,   -- plans made from then on are by these rules
    replanned   uuid,                   -- the last job whose plan was looked at
    finished_at timestamptz,            -- when all were
    data        bytea                   -- a zip archive of TZif files; null once two newer versions are there
);

alter table duly.job_changes drop constraint job_changes_what_check;
alter table duly.job_changes add constraint job_changes_what_check check (what in ('submitted', 'paused', 'resumed',
    'redefined', 'changed', 'cancelled', 'parked', 'unparked', 'triggered', 'redriven', 'repaired', 'rezoned')) not valid;
