-- What handlers log and print. A row holds the lines that one flush of the worker found of one attempt; a line is
-- [number, microseconds since 1970, level, logger or stream, text]. A gap in the numbers: lines that were left out.
create table duly.run_logs (
    job_id       uuid not null,
    scheduled_at timestamptz not null,
    claim_id     uuid not null,         -- the token of the attempt: a later claim has a greater one
    part         integer not null,      -- 0, 1, …: the beginning, in order; 2147483647: the latest lines, rewritten
    attempt      smallint not null,
    last_line    integer not null,      -- number of the last line of this part
    ended        boolean not null,      -- the handler has ended, and no line follows
    lines        text not null,         -- JSON
    kept_at      timestamptz not null,
    primary key (job_id, scheduled_at, claim_id, part)
);
create index run_logs_kept on duly.run_logs (kept_at);
