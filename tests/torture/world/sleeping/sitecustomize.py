"""Python's `time.sleep`, for processes under libfaketime; found by PYTHONPATH, imported by Python itself at its start.

libfaketime 0.9.10, which is Debian's, makes every `time.sleep` of Python 3.11 fail with EINVAL when the monotonic clock
is left alone (https://github.com/wolfcw/libfaketime/issues/426): handlers that sleep and ZooKeeper's client would die
of the harness, not of a fault. Waiting for no file at all takes as long and is not touched by it.
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
