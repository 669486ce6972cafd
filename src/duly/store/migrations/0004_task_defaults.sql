-- What a task sets for its jobs (queue, priority, policy) travels with the offer of the workers that have it, and fills
-- in what a submit leaves out, whoever submits. Nodes of 0.1.0 write none of this.
alter table duly.handlers
    add column defaults jsonb,          -- only what the task sets: {"queue": …, "priority": …, "policy": {…}}
    add column owner text,              -- the name of the worker's application; empty: it has none
    add column deploy text,             -- the newest deploy of that application that has offered the task
    add column rank text collate "C";   -- the same in a form that sorts as text; empty: the deploy is unknown
