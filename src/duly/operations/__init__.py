"""What API, CLI, dashboard and SDK all call. None of them speaks SQL; this layer speaks neither HTTP nor terminal."""

from duly.operations.batching import Batching, Refused
from duly.operations.dead_letters import DeadLetters
from duly.operations.declaring import Declaring
from duly.operations.explaining import Explaining
from duly.operations.forecasting import Forecasting
from duly.operations.keys import CreatedKey, Key, Keys, Principal
from duly.operations.previewing import preview
from duly.operations.submitters import Submitters
from duly.operations.submitting import Submitted
from duly.operations.tenants import Tenant, Tenants

__all__ = [
    "CreatedKey",
    "Key",
    "Operations",
    "Principal",
    "Refused",
    "Submitted",
    "Tenant",
    "preview",
]


class Operations(Batching, Declaring, DeadLetters, Explaining, Forecasting, Keys, Submitters, Tenants):
    """Everything a client can do with the jobs of one store."""

    # It needs no store; here for those who have one.
    preview = staticmethod(preview)
