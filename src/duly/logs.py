"""How log lines of Duly's own processes look: `2030-01-01 09:30:00.004 INFO    duly.worker: …`, in local time."""

from __future__ import annotations

LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
MOMENT = "%Y-%m-%d %H:%M:%S"
