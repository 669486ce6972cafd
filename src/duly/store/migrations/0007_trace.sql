-- The trace that a job's submit belongs to, if it is recorded: headers of W3C Trace Context (duly/tracing/context.py).
alter table duly.jobs add column trace text;
