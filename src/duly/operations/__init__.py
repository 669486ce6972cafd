"""What API, CLI, dashboard and SDK all call. None of them speaks SQL; this layer speaks neither HTTP nor terminal."""

from duly.operations.changing import Changing
from duly.operations.dead_letters import DeadLetterFilter, DeadLetters, Swept
from duly.operations.explaining import Explaining
from duly.operations.looking import ClusterStatus, Page
from duly.operations.previewing import Preview, preview
from duly.operations.submitting import Submitted, Submitting
from duly.operations.verdicts import Explanation, Verdict

__all__ = [
    "ClusterStatus",
    "DeadLetterFilter",
    "Explanation",
    "Operations",
    "Page",
    "Preview",
    "Submitted",
    "Swept",
    "Verdict",
    "preview",
]


class Operations(Submitting, Changing, DeadLetters, Explaining):
    """Everything a client can do with the jobs of one store."""

    # It needs no store; here for those who have one.
    preview = staticmethod(preview)
