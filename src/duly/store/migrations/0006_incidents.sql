-- Incidents: what is wrong with a job or a monitor, opened once and closed once. The watcher (maintenance/watcher.py)
-- opens and closes those of jobs that have alerts in their policy.
create table duly.incidents (
    incident_id   uuid primary key,
    tenant        text not null,
    job_id        uuid,                 -- null: a monitor's
    monitor       text,                 -- the slug of the monitor; null: a job's
    name          text not null,        -- of the job or monitor, when it was opened
    kind          text not null,        -- late, overrun, failures_in_row …
    cause         text not null,        -- incidents with one cause are sent as one message
    message       text not null,
    scheduled_at  timestamptz,          -- the run or occurrence that it is about
    opened_at     timestamptz not null,
    closed_at     timestamptz,
    closed_why    text,
    acked_at      timestamptz,
    acked_by      text,
    -- What has been sent of its opening and of its closing: the group with which it is sent, which is the id that
    -- receivers see and stays the same when it is sent again; and the channels that have taken it.
    opening_group uuid,
    opening_sent  text[] not null default '{}',
    closing_group uuid,
    closing_sent  text[] not null default '{}',
    told          boolean not null default false, -- nothing of it is still to be sent
    constraint incidents_subject check ((job_id is null) <> (monitor is null))
);
-- A kind of incident is open once, however many leaders find it.
create unique index incidents_open on duly.incidents (tenant, coalesce(job_id::text, monitor), kind, (job_id is null))
    where closed_at is null;
create index incidents_of_job on duly.incidents (job_id, opened_at) where job_id is not null;
create index incidents_opened on duly.incidents (tenant, opened_at, incident_id);
create index incidents_closed on duly.incidents (closed_at) where closed_at is not null;
create index incidents_untold on duly.incidents (opened_at) where not told;

-- Times in which no incident is opened: of a whole tenant, or of one job.
create table duly.maintenance_windows (
    window_id  uuid primary key,
    tenant     text not null,
    job_id     uuid,                    -- null: all jobs and monitors of the tenant
    starts_at  timestamptz not null,
    ends_at    timestamptz not null,
    reason     text not null,
    created_at timestamptz not null,
    check (starts_at < ends_at)
);
create index maintenance_windows_tenant on duly.maintenance_windows (tenant, ends_at);

-- The jobs that the watcher looks at: those with alerts in their policy, and for a while some that had them. A table and
-- not an index over jobs, because an index costs each fire of these jobs an entry, and building it reads every job.
create table duly.alerting (
    job_id uuid primary key,
    since  timestamptz not null default clock_timestamp() -- when it was last noted
);
create index alerting_since on duly.alerting (since);

-- Notes a new job that has alerts, whoever inserts it: a submit, a copy, a caller's transaction, SQL. A fire updates jobs
-- and so never comes here. A change of a policy notes the job by itself (incidents/watch.sql).
create function duly.note_alerts() returns trigger
language plpgsql
security definer -- a role that may insert jobs needs no right to this table
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into duly.alerting (job_id) values (new.job_id) on conflict do nothing;
    return null;
end
$$;
revoke execute on function duly.note_alerts() from public;
create trigger jobs_alerting after insert on duly.jobs
    for each row when (new.policy ? 'alerts') execute function duly.note_alerts();
