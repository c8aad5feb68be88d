"""The app of a scripted flow, served by a separate process."""

from __future__ import annotations

import os

from faults.views.scripted_flow import view_of

__all__ = ["app"]

app = view_of(os.environ.get("FLOW_NAME", "derived"))[0]
