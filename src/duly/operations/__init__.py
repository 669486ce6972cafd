"""What API, CLI, dashboard and SDK all call. None of them speaks SQL; this layer speaks neither HTTP nor terminal."""

from duly.operations.changing import Changing
from duly.operations.looking import ClusterStatus, Page
from duly.operations.submitting import Submitted, Submitting

__all__ = ["ClusterStatus", "Operations", "Page", "Submitted"]


class Operations(Submitting, Changing):
    """Everything a client can do with the jobs of one store."""
