"""Whether a proof is about the rows that are served now.

A proof of a flow, or of a view of a flow's topic, belongs to a generation of the flow. A proof of any view also belongs
to the columns, the key and the upcasters with which the view was built, and to its topic. After a switch, or after a
rebuild for one of these, the proof is outdated: it says nothing about the new rows.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import GenerationsCache
from headrace.model.code_digest import upcast_digest
from headrace.model.declarations import Flow, View
from headrace.model.schema import fields_to_json
from headrace.ops.verify.report import Report, flow_of

__all__ = ["OutdatedProofs", "Proven", "view_digest"]

_TOPIC_ID_S = 5.0
_DIGEST_CHARS = 16


class Proven(Protocol):
    """What a proof is about."""

    @property
    def generation(self) -> int: ...

    @property
    def view_digest(self) -> str: ...

    @property
    def topic_id(self) -> str: ...


def view_digest(app: App, view: View) -> str:
    """Return a digest of the declarations that a view is built from. The columns of a flow's topic belong to the
    generation.
    """
    topic = view.topic
    is_derived = app.writer_of(topic) is not None
    fields = [] if is_derived or topic.schema is None else fields_to_json(topic.schema.fields)
    facts = [fields, list(view.key or ()), upcast_digest(topic.upcast)]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:_DIGEST_CHARS]


@dataclass(slots=True)
class _TopicId:
    id: str
    read_s: float


class OutdatedProofs:
    """Thread-safe. Two threads that need a topic's id at the same time both read it."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._cluster = cluster
        self._app = app
        self._generations = GenerationsCache(cluster)
        self._views = {view.name: view for view in app.views}
        self._digests = {view.name: view_digest(app, view) for view in app.views}
        self._topic_ids: dict[str, _TopicId] = {}

    def line(self, report: Report) -> str:
        """Return why the report says nothing about the rows that are served now; empty if it does."""
        why = (
            self.why_flow(flow_of(self._app, report), report)
            if report.what == "flow"
            else self.why(report.name, report)
        )
        if not why:
            return ""
        of = f" for generation {report.generation}" if report.generation else ""
        return f"{report.what} {report.name}: outdated: {report.verdict}{of}, but {why}"

    def why_flow(self, flow: Flow | None, proven: Proven) -> str:
        generations = self._generations.get(flow) if flow is not None else None
        if generations is None or generations.serving == proven.generation:
            return ""
        return f"generation {generations.serving} serves now"

    def why(self, name: str, proven: Proven) -> str:
        """Return why a proof of this view is outdated; empty if it is not. Proofs of earlier releases lack the digest
        and the topic id.
        """
        view = self._views.get(name)
        if view is None:
            return ""
        flow = self._app.writer_of(view.topic)
        if flow is not None and (why := self.why_flow(flow, proven)):
            return why
        if proven.view_digest and proven.view_digest != self._digests[name]:
            return "the columns, the key or the upcasters of the view have changed since"
        if flow is None and proven.topic_id and proven.topic_id != self._topic_id(view.topic.name):
            return f"topic {view.topic.name} was created again since"
        return ""

    def _topic_id(self, topic: str) -> str:
        now_s, known = time.monotonic(), self._topic_ids.get(topic)
        if known is None or now_s - known.read_s > _TOPIC_ID_S:
            info = self._cluster.topic(topic)
            known = self._topic_ids[topic] = _TopicId("" if info is None else info.id, now_s)
        return known.id
