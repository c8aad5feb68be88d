"""The base time of tests: recent, because retention deletes records that are a week old."""

from __future__ import annotations

import time

__all__ = ["NOON_MS"]

# A whole minute between one and two hours ago, the same throughout a session.
NOON_MS = (int(time.time()) // 60 - 90) * 60_000
