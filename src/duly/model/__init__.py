"""The small frozen values that every part of Duly passes around. Nothing here does I/O.

Read in this order:

- `fields`: the description of one field, from which checks, schema, options and documents follow;
- `policy`: what a job's policy may say, its defaults, and the JSON it is stored as;
- `job`: a job, as it is asked for and as it is stored;
- `defaults`: what a task sets for its jobs, and how it fills in a request;
- `options`: the keywords of `submit`, `task`, `cron` and `change`, typed;
- `ids`: a run's id, which is its job and moment, written as one string;
- `run`: one execution of an occurrence, and its attempts;
- `claim`: runs in a worker's hands, and the outcomes that it records;
- `dead_letter`: a run whose retries are used up, and how dead letters are selected;
- `occurrence`: occurrences that are still to come: a schedule's preview, and the forecast of all jobs;
- `explanation`: the verdict on one occurrence, in a sentence;
- `audit`: who acts, and what the audit trail keeps of it;
- `monitor`: what runs elsewhere and is watched by its pings;
- `cluster`: nodes, shards and counts; `page`: one page of any list.

`duly.checks` validates what a client sends; `duly.states` has the moves between run states.
"""

from duly.model.audit import DULY, Actor, AuditEntry, AuditFilter, os_user
from duly.model.claim import Buried, Claim, ClaimedRun, Expired, Recorded, Requeued, Succeeded
from duly.model.cluster import Cluster, ClusterStatus, Counts, NodeStatus, ShardStatus, Unrunnable
from duly.model.dead_letter import DeadLetter, DeadLetterFilter, Swept
from duly.model.defaults import NO_DEFAULTS, TASK_FIELDS, TaskDefaults, complete, without_repeated
from duly.model.deploys import Declarer
from duly.model.explanation import Explanation, Verdict
from duly.model.fields import Rule, rules_of
from duly.model.ids import from_micros, make_run_id, parse_run_id, to_micros
from duly.model.incident import Incident, MaintenanceWindow
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    JOB_RULES,
    Job,
    JobRequest,
    JobStatus,
    ScheduleKind,
    Submitted,
    SubmittedId,
    each_request,
    id_range,
    make_request,
    only_match,
)
from duly.model.log_line import LogLine, LogPage
from duly.model.monitor import Monitor, MonitorDefinition, MonitorState, Ping, PingEvent, StoredMonitor
from duly.model.occurrence import Expected, Forecast, Occurrence, Preview
from duly.model.options import CronOptions, JobChanges, JobOptions, PolicyOptions
from duly.model.page import Page
from duly.model.policy import (
    ALERT_RULES,
    DEFAULT_KEY_TEMPLATE,
    DEFAULT_POLICY,
    POLICY_FIELDS,
    POLICY_RULES,
    Alerts,
    DstFold,
    DstGap,
    MissedWindow,
    Overlap,
    Policy,
    RetryBackoff,
    policy_from_stored,
    policy_with,
)
from duly.model.run import Attempt, ErrorInfo, Progress, Run

__all__ = [
    "ALERT_RULES",
    "DEFAULT_KEY_TEMPLATE",
    "DEFAULT_POLICY",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "DEFAULT_TENANT",
    "DULY",
    "JOB_RULES",
    "NO_DEFAULTS",
    "POLICY_FIELDS",
    "POLICY_RULES",
    "TASK_FIELDS",
    "Actor",
    "Alerts",
    "Attempt",
    "AuditEntry",
    "AuditFilter",
    "Buried",
    "Claim",
    "ClaimedRun",
    "Cluster",
    "ClusterStatus",
    "Counts",
    "CronOptions",
    "DeadLetter",
    "DeadLetterFilter",
    "Declarer",
    "DstFold",
    "DstGap",
    "ErrorInfo",
    "Expected",
    "Expired",
    "Explanation",
    "Forecast",
    "Incident",
    "Job",
    "JobChanges",
    "JobOptions",
    "JobRequest",
    "JobStatus",
    "LogLine",
    "LogPage",
    "MaintenanceWindow",
    "MissedWindow",
    "Monitor",
    "MonitorDefinition",
    "MonitorState",
    "NodeStatus",
    "Occurrence",
    "Overlap",
    "Page",
    "Ping",
    "PingEvent",
    "Policy",
    "PolicyOptions",
    "Preview",
    "Progress",
    "Recorded",
    "Requeued",
    "RetryBackoff",
    "Rule",
    "Run",
    "ScheduleKind",
    "ShardStatus",
    "StoredMonitor",
    "Submitted",
    "SubmittedId",
    "Succeeded",
    "Swept",
    "TaskDefaults",
    "Unrunnable",
    "Verdict",
    "complete",
    "each_request",
    "from_micros",
    "id_range",
    "make_request",
    "make_run_id",
    "only_match",
    "os_user",
    "parse_run_id",
    "policy_from_stored",
    "policy_with",
    "rules_of",
    "to_micros",
    "without_repeated",
]
