-- Monitors: what runs elsewhere and tells Duly by pings that it ran. The watch (maintenance/monitor_watch.py) looks at one
-- when `look_at` has come and opens incidents; an ordinary ping moves no `look_at`.
create table duly.monitors (
    tenant              text not null,
    slug                text not null,
    description         text,
    schedule            text not null,      -- the canonical text
    kind                text not null,      -- cron, interval or rrule
    timezone            text not null,
    grace_seconds       integer not null,
    max_runtime_seconds integer,            -- from a start to its end; null: starts expect nothing
    token               bytea not null,     -- SHA-256 of the secret in its ping address
    created_at          timestamptz not null,
    updated_at          timestamptz not null,
    watched_from        timestamptz not null, -- nothing before this is expected
    last_start_at       timestamptz,
    last_success_at     timestamptz,
    last_failure_at     timestamptz,
    failure             jsonb,              -- the failure that no success has followed
    starts              jsonb not null default '{}', -- what has started and not ended: its id, and when
    pings               jsonb not null default '[]', -- the last ones, newest first
    version             bigint not null default 1,
    alarmed             boolean not null default false, -- an incident may be open: a success has to be looked at
    look_at             timestamptz not null,
    primary key (tenant, slug)
);
create unique index monitors_token on duly.monitors (token);
create index monitors_look on duly.monitors (look_at);
