-- The steps that a store has, for people: duly.migrations has them under other numbers, because 0.1.0 reads that table
-- (see store/steps.py).
create view duly.steps as
select case m.version when 1 then 1 else -m.version end as number, m.name, m.checksum, m.applied_at
from duly.migrations m
where m.version = 1 or m.version < -1;

comment on table duly.migrations is
    '1: the baseline; 0: the oldest Duly that may run; -1: the routines, and the version of Duly that brought them; '
    '-N: step N. See the view duly.steps.';
