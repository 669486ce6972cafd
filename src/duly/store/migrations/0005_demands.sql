-- What active jobs demand of a worker. The survey (maintenance/survey.py) walks over all jobs, a page a minute, and
-- keeps one row for each tenant, queue and handler; fires and claims neither read nor write it.
create table duly.demands (
    tenant  text not null,
    queue   text not null,
    kind    text not null,              -- task, http or command
    handler text not null,              -- the task's name, or the command's program; empty: an endpoint
    walk    bigint not null,            -- the last walk that found such a job
    jobs    bigint not null,            -- found by that walk, which may still go on
    before  bigint not null,            -- found by the walk before it
    job_id  uuid not null,              -- one of them
    primary key (tenant, queue, kind, handler)
);
-- How far the survey has come.
create table duly.survey (
    singleton   boolean primary key default true check (singleton),
    walk        bigint not null default 1,
    after       uuid not null default '00000000-0000-0000-0000-000000000000', -- the jobs up to this one are counted
    began_at    timestamptz,            -- when this walk began; null: the first one has not begun
    surveyed_at timestamptz             -- every job that was active then is counted; null: no walk has ended yet
);
insert into duly.survey default values;
