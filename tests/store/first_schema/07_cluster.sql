-- The cluster: nodes, the terms of shards, and the time-zone data that all schedulers share.

-- Every process that takes part. Its id is made at process start: a restarted worker never inherits old runs.
create table duly.nodes (
    node_id     uuid primary key,
    kind        text not null check (kind in ('scheduler', 'worker')),
    name        text not null,
    version     text not null,
    started_at  timestamptz not null,
    lease_until timestamptz not null,
    stopped_at  timestamptz,
    info        jsonb not null default '{}'
);
create index nodes_lease on duly.nodes (lease_until);

-- A shard's term: the node that leads it, and the epoch. A fire locks this row and compares the epoch.
create table duly.shards (
    shard   smallint primary key,
    epoch   integer not null default 0,
    node_id uuid,
    since   timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- Every past term, so that a run's epoch still names its node.
create table duly.terms (
    shard      smallint not null,
    epoch      integer not null,
    node_id    uuid not null,
    started_at timestamptz not null,
    primary key (shard, epoch)
);

-- The Python tasks that workers have offered, so that a submit can refuse a misspelt one.
create table duly.handlers (
    name    text primary key,
    seen_at timestamptz not null
);

-- The time-zone data by which jobs are planned, one row per version that was ever in force; the newest is in force now.
-- The data is kept whole, because a plan says which local time it stands for only together with the rules by which it
-- was made; and so that all schedulers of a store plan by the same rules, whatever their machines have. A version that
-- was replaced never takes over again: nodes with different data do not fight.
create table duly.zone_rules (
    version     text primary key,       -- a release such as 2026a, or a digest where the data has no name
    noted_at    timestamptz not null,   -- plans made from then on follow these rules
    replanned   uuid,                   -- the last job whose plan was checked
    finished_at timestamptz,            -- when all were
    data        bytea                   -- a zip archive of TZif files; null once two newer versions exist
);
