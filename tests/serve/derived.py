"""The app of a flow by hand, for a server that is a process of its own."""

from __future__ import annotations

import os

from bench.faults.flow_by_hand import view_of

__all__ = ["app"]

app = view_of(os.environ.get("FLOW_NAME", "derived"))[0]
