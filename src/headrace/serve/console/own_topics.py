"""Topics that nobody but Headrace writes: a record of somebody else in them would be taken for one of its own.

Several apps may share a log, and a server knows the names of one. So topics that lie beside flows, views and apps are
told by how their names end.
"""

from __future__ import annotations

import re

__all__ = ["whose_topic"]

_ENDS = {
    "progress": "the flow {name}",
    "late": "the flow {name}",
    "dead": "the flow or view {name}",
    "alerts": "the app {name}",
}
_BESIDE = re.compile(rf"(?P<name>.+)\.(?P<end>{'|'.join(_ENDS)})")
_GENERATION = re.compile(r"(?P<name>.+)\.g[0-9]+")


def whose_topic(topic: str) -> str:
    """Who alone writes it; empty where anybody may. Topics that the app declares are not asked about here."""
    if topic.startswith("__"):
        return "the log"
    if topic.startswith("headrace."):
        return "Headrace"
    if found := _BESIDE.fullmatch(topic):
        return _ENDS[found["end"]].format(name=found["name"])
    if found := _GENERATION.fullmatch(topic):
        return f"the flow that writes {found['name']}"
    return ""
