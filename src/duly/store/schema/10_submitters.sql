-- The tables of duly.submit. Its functions are routines: store/routines.

-- Jobs that duly.submit has stored and Python has yet to check and plan: recurring ones, and those whose target is not
-- a Python task. They are paused until then. Almost always empty.
create table duly.sql_submits (
    job_id  uuid primary key,
    at      timestamptz not null,
    unnamed boolean not null default false -- no name was given: an endpoint or command is then named by what it calls
);

-- Roles that submit for one tenant only. A member of such roles submits for their tenants.
create table duly.submitters (
    role       name primary key,
    tenant     text not null,
    commands   boolean not null default false, -- whether it may submit commands, which have the worker's rights
    created_at timestamptz not null
);
