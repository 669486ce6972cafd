"""The small frozen values that every part of Duly passes around. Nothing here does I/O.

Read in this order:

- `fields`: the description of one field, from which checks, schema, options and documents follow;
- `policy`: what a job's policy may say, its defaults, and the JSON it is stored as;
- `job`: a job, as it is asked for and as it is stored;
- `run`: one execution of an occurrence, its attempts, and what is left of it when it is given up;
- `ids`: a run's id, which is its job and moment, written as one string.

What a client sends is validated in `duly.checks`; the moves between run states are in `duly.states`.
"""

from duly.model.fields import Rule, rules_of
from duly.model.ids import from_micros, make_run_id, parse_run_id, to_micros
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    JOB_RULES,
    Job,
    JobRequest,
    JobStatus,
    ScheduleKind,
    each_request,
)
from duly.model.policy import (
    DEFAULT_KEY_TEMPLATE,
    DEFAULT_POLICY,
    POLICY_FIELDS,
    POLICY_RULES,
    DstFold,
    DstGap,
    MissedWindow,
    Overlap,
    Policy,
    RetryBackoff,
    policy_from_stored,
)
from duly.model.run import Attempt, DeadLetter, ErrorInfo, Progress, Run

__all__ = [
    "DEFAULT_KEY_TEMPLATE",
    "DEFAULT_POLICY",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "DEFAULT_TENANT",
    "JOB_RULES",
    "POLICY_FIELDS",
    "POLICY_RULES",
    "Attempt",
    "DeadLetter",
    "DstFold",
    "DstGap",
    "ErrorInfo",
    "Job",
    "JobRequest",
    "JobStatus",
    "MissedWindow",
    "Overlap",
    "Policy",
    "Progress",
    "RetryBackoff",
    "Rule",
    "Run",
    "ScheduleKind",
    "each_request",
    "from_micros",
    "make_run_id",
    "parse_run_id",
    "policy_from_stored",
    "rules_of",
    "to_micros",
]
