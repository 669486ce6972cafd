"""The small frozen values that every part of Duly passes around. Nothing here does I/O.

Read in this order:

- `policy`: what a job's policy may say, its defaults, and the JSON it is stored as;
- `job`: a job, as it is asked for and as it is stored;
- `run`: one execution of an occurrence, its attempts, and what is left of it when it is given up;
- `ids`: a run's id, which is its job and moment, written as one string.

What a client sends is validated in `duly.checks`; the moves between run states are in `duly.states`.
"""

from duly.model.ids import from_micros, make_run_id, parse_run_id, to_micros
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    Job,
    JobRequest,
    JobStatus,
    ScheduleKind,
    each_request,
)
from duly.model.policy import (
    DEFAULT_KEY_TEMPLATE,
    DEFAULT_POLICY,
    MAX_SECONDS,
    POLICY_CHOICES,
    POLICY_FIELDS,
    POLICY_INTEGERS,
    POLICY_NUMBERS,
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
    "MAX_SECONDS",
    "POLICY_CHOICES",
    "POLICY_FIELDS",
    "POLICY_INTEGERS",
    "POLICY_NUMBERS",
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
    "Run",
    "ScheduleKind",
    "each_request",
    "from_micros",
    "make_run_id",
    "parse_run_id",
    "policy_from_stored",
    "to_micros",
]
