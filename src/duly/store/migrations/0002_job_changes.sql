-- What was done to a job and when, so that the past can be explained: why did it not run at nine?
-- Written in the same statement as the change itself. Not one row per submit: a job's creation is in its own row, and
-- a million one-offs must not cost a million rows here.
create table duly.job_changes (
    -- Two changes of one microsecond still have an order.
    change_id bigint generated always as identity primary key,
    job_id    uuid not null,
    at        timestamptz not null,
    what      text not null check (what in ('submitted', 'paused', 'resumed', 'redefined', 'changed', 'cancelled',
        'parked', 'unparked', 'triggered')),
    -- reason: why. next_run_at: where the job stood before (or stands after, for a resume). before: the schedule that
    -- was in force until then, where this changed it.
    detail    jsonb
);
create index job_changes_job on duly.job_changes (job_id, at);
