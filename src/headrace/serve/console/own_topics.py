"""Topics that nobody but Headrace writes: a record of somebody else in them would be taken for one of its own."""

from __future__ import annotations

import re

from headrace.app import App
from headrace.model.alert import alerts_topic

__all__ = ["whose_topic"]


def whose_topic(app: App, topic: str) -> str:
    """Who alone writes it; empty where anybody may. Topics that the app declares are not asked about here."""
    if topic.startswith("__"):
        return "the log"
    if topic.startswith("headrace.") or topic == alerts_topic(app.name):
        return "Headrace"
    for flow in app.flows:
        derived = rf"{re.escape(flow.writes.name)}\.g[0-9]+"
        if topic == flow.progress_topic or re.fullmatch(derived, topic):
            return f"flow {flow.name}"
    return ""
