"""By which name a view is read, where that is not its own: a compacted topic, of which the last word on a name counts.

``headrace.names``: the key is ``<app>/<name>``, the value ``{"app", "name", "view", "at_ms"}``. A store is replaced by
a new view beside the old one, and by a record here: who asks for the old name is answered by the new view.
"""

from __future__ import annotations

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.client.writing import write

__all__ = ["TOPIC", "Switched", "names_of", "switch"]

TOPIC = "headrace.names"


class Switched(msgspec.Struct, frozen=True):
    app: str
    name: str
    view: str
    at_ms: int


_decoder = msgspec.json.Decoder(Switched)


def switch(cluster: Cluster, app: str, name: str, view: str, now_ms: int) -> None:
    cluster.ensure_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    value = msgspec.json.encode(Switched(app, name, view, now_ms)) if name != view else None
    write(cluster, TOPIC, f"{app}/{name}", value, f"switching {name!r} in {TOPIC!r}")


def names_of(cluster: Cluster, app: str) -> dict[str, str]:
    """The names of an app that another view answers to, and which one."""
    if cluster.topic(TOPIC) is None:
        return {}
    starts, ends = cluster.starts(TOPIC), cluster.ends(TOPIC)
    found: dict[str, str] = {}
    for message in read(cluster, TOPIC, {one: (starts[one], end) for one, end in ends.items()}):
        of, _, name = (message.key() or b"").decode("utf-8", "replace").partition("/")
        if of != app:
            continue
        value = message.value()
        try:
            found[name] = _decoder.decode(value).view if value else name
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # Nobody's.
    return {name: view for name, view in found.items() if name != view}
