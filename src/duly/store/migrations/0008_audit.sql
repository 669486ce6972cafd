-- Who did what to which job, run, dead letter, key or tenant, when, through which door, and why. Written in the same
-- statement as the change, so neither exists without the other. Fires, claims and plain one-offs write nothing here:
-- the table grows with what people and deploys do, and not with the traffic. Rows are only added, and deleted when they
-- are older than DULY_AUDIT_RETENTION_DAYS.
create table duly.audit (
    audit_id bigint generated always as identity primary key,
    at       timestamptz not null,
    tenant   text not null,
    -- via: api, cli, sdk, sql, code (declared by a deploy), or scheduler (Duly itself). actor: a key's or user's name.
    -- key, request, address: of a call of the API.
    who      jsonb not null,
    via      text not null generated always as (who ->> 'via') stored,
    actor    text not null generated always as (who ->> 'actor') stored,
    action   text not null,
    kind     text not null,              -- job, run, dead_letter, key, tenant or role
    object   text,                       -- its id; null: several, which `after` names
    job_id   uuid,                       -- the job that it is or belongs to
    before   jsonb,                      -- only what changed; never a secret
    after    jsonb,
    reason   text
);
create index audit_tenant on duly.audit (tenant, at, audit_id);
create index audit_job on duly.audit (job_id, at, audit_id) where job_id is not null;
create index audit_object on duly.audit (object, at) where object is not null;
create index audit_at on duly.audit (at);
