-- Which application and which deploy of it declared a job last. Only jobs that code declares have a row, and neither
-- fires nor claims read it.
create table duly.declarations (
    tenant        text not null,
    key           text not null,        -- what the code calls the job: declared:TASK
    owner         text not null,        -- the application's name; empty: it has none
    job_id        uuid,                 -- null only within the transaction that makes the job
    deploy        text,                 -- the newest deploy that has declared the job, or no longer declares it
    rank          text collate "C" not null, -- the same in a form that sorts as text; empty: the deploy is unknown
    beside        text[] not null,      -- all keys that this deploy declares
    fingerprint   bytea,                -- of the declared content: a job with another one was redefined by an old node
    renamed_to    text,                 -- the key that took over the job
    undeclared_at timestamptz,          -- when it was found that no live deploy declares the job
    reason        text,                 -- with which it was paused then; null: others had paused it before
    declared_at   timestamptz not null,
    primary key (tenant, key)
);
create index declarations_job on duly.declarations (job_id);
