"""Switched view names: a compacted topic that maps the name of a view to another view.

Topic ``headrace.names``: the key is ``<app>/<name>``, the value is ``{"app", "name", "view", "at_ms"}``. To replace the
store of a view, a new view is built next to it. Then a record in this topic redirects readers of the old name to the
new view.
"""

from __future__ import annotations

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.records import read, write

__all__ = ["TOPIC", "NameSwitch", "names_of", "switch"]

TOPIC = "headrace.names"


class NameSwitch(msgspec.Struct, frozen=True):
    app: str
    name: str
    view: str
    at_ms: int


_decoder = msgspec.json.Decoder(NameSwitch)


def switch(cluster: Cluster, app: str, name: str, view: str, now_ms: int) -> None:
    cluster.ensure_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    value = msgspec.json.encode(NameSwitch(app, name, view, now_ms)) if name != view else None
    write(cluster, TOPIC, f"{app}/{name}", value, f"switching view name {name!r} in topic {TOPIC!r}")


def names_of(cluster: Cluster, app: str) -> dict[str, str]:
    """Return the switched names of an app, each with its view."""
    if cluster.topic(TOPIC) is None:
        return {}
    starts, ends = cluster.starts(TOPIC), cluster.ends(TOPIC)
    names: dict[str, str] = {}
    for message in read(cluster, TOPIC, {number: (starts[number], end) for number, end in ends.items()}):
        record_app, _, name = (message.key() or b"").decode("utf-8", "replace").partition("/")
        if record_app != app:
            continue
        value = message.value()
        try:
            names[name] = _decoder.decode(value).view if value else name
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # Another program wrote this record.
    return {name: view for name, view in names.items() if name != view}
