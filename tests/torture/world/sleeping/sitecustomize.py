"""Replaces `time.sleep` in processes under libfaketime. Python imports this module at its start, through PYTHONPATH.

Debian's libfaketime 0.9.10 makes every `time.sleep` of Python 3.11 fail with EINVAL when the monotonic clock is left
alone (https://github.com/wolfcw/libfaketime/issues/426): handlers that sleep and ZooKeeper's client would die because
of the harness, not of a fault. `select` without files waits as long, and libfaketime does not affect it.
"""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex, /) -> None:
    length = float(seconds)
    if length < 0:
        raise ValueError("sleep length must be non-negative")
    select.select((), (), (), length)


time.sleep = sleep
