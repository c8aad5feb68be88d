"""Rules that decide whether a letter can be written back, and to which topic.

The headers of a letter are not trusted, because any client could have written them. So a letter is written back only to
a topic that the app declares, that no flow writes, and that the dead-letter topic's flow or view reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.ops.dead.dead_topic import dead_topics
from headrace.ops.dead.letter import REPLAY, Header, Letter, Origin, RecordId
from headrace.ops.dead.marks import Mark

__all__ = ["ReplayRules", "Result", "Target"]

_BATCH_BYTES = 61
_RECORD_BYTES = 32
_HEADER_BYTES = 10
_REPLAY_BYTES = 200
"""Bytes of the replay headers, without the record ids in them."""
_WHY_CHARS_MAX = 500

State = Literal["ready", "written", "already", "cannot"]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome for one letter. A dry run returns ``ready`` for a letter that would be written."""

    letter: RecordId
    state: State
    origin: Origin | None = None
    to: RecordId | None = None
    """The written record. Its offset is -1 until it is written."""
    bytes: int = 0
    why: str = ""
    """Why the letter is not written."""
    unfit: str = ""
    """Why the written record will become a dead letter again: its value still does not match the topic's schema.
    Otherwise empty.
    """
    headers: Literal["kept", "unknown"] = "kept"
    """``unknown`` if the original record was deleted, and its headers with it."""


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partitions: int
    bytes_max: int
    by_key: bool
    """Whether the topic is compacted, and so rejects a record without a key."""


class ReplayRules:
    """Caches topics and configs of the log. After a change in the log, create a new instance."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._cluster = cluster
        self._app = app
        self._declared = {topic.name: topic for topic in app.topics}
        self._origins: dict[str, frozenset[str]] = {}
        for dead_topic in dead_topics(app):
            self._origins[dead_topic.name] = (
                self._origins.get(dead_topic.name, frozenset()) | dead_topic.origins
            )
        self._targets: dict[str, Target | None] = {}

    def refusal(self, letter: Letter) -> str:
        """Return why the letter cannot be written back according to the app; empty if it can."""
        if letter.origin is None:
            if letter.exception == "RowWithoutKey":
                return "a flow derived this row without a key, so it has no original topic"
            return "the letter does not name its original topic"
        name = letter.origin.topic
        topic = self._declared.get(name)
        if topic is not None:
            flow = self._app.writer_of(topic)
            return (
                self._origin_refusal(letter.record_id.topic, name)
                if flow is None
                else _derived(name, flow.name)
            )
        for declared in self._app.topics:
            flow = self._app.writer_of(declared)
            if flow is not None and re.fullmatch(re.escape(declared.name) + r"\.g[0-9]+", name):
                return _derived(name, flow.name)
        return f"the app does not declare topic {name[:250]!r}, so no flow or view reads it"

    def _origin_refusal(self, dead_topic: str, origin: str) -> str:
        """Return why letters of ``dead`` cannot come from ``origin``; empty if they can."""
        origins = self._origins.get(dead_topic, frozenset())
        if origin in origins:
            return ""
        known = ", ".join(sorted(origins)) or "no topic of the app"
        return f"letters of {dead_topic!r} come from {known[:250]}, but this letter names {origin[:250]!r}"

    def check(self, letter: Letter, mark: Mark | None, headers: tuple[Header, ...] | None) -> Result:
        """Check one letter. ``headers`` are the record's own headers; None if they are unknown."""
        kept: Literal["kept", "unknown"] = "unknown" if headers is None else "kept"
        fields = {"letter": letter.record_id, "origin": letter.origin, "headers": kept}
        if mark is not None:
            return Result(state="already", to=mark.to, why=_already_written(letter, mark), **fields)  # type: ignore[arg-type]
        why = self.refusal(letter)
        if why:
            return Result(state="cannot", why=why, **fields)  # type: ignore[arg-type]
        assert letter.origin is not None
        target = self.target(letter.origin.topic)
        if target is None:
            why = f"topic {letter.origin.topic!r} no longer exists"
            return Result(state="cannot", why=why, **fields)  # type: ignore[arg-type]
        size = size_of(letter, headers or ())
        to = RecordId(target.topic, self.partition(letter), -1)
        if size > target.bytes_max:
            why = f"it has about {size:,} bytes; topic {target.topic!r} accepts at most {target.bytes_max:,}"
            return Result(state="cannot", bytes=size, why=why, **fields)  # type: ignore[arg-type]
        if letter.key is None and target.by_key:
            why = f"it has no key, but topic {target.topic!r} is compacted"
            return Result(state="cannot", bytes=size, why=why, **fields)  # type: ignore[arg-type]
        unfit = _schema_mismatch(self._declared[target.topic], letter)
        return Result(state="ready", to=to, bytes=size, unfit=unfit, **fields)  # type: ignore[arg-type]

    def partition(self, letter: Letter) -> int:
        """Return the original partition, which has the other records of the key. -1 means that the client chooses the
        partition by the key.
        """
        assert letter.origin is not None
        target, number = self.target(letter.origin.topic), letter.origin.partition
        return -1 if number is None or target is None or number >= target.partitions else number

    def target(self, topic: str) -> Target | None:
        if topic not in self._targets:
            info = self._cluster.topic(topic)
            self._targets[topic] = None if info is None else self._read_target(topic, info.partitions)
        return self._targets[topic]

    def _read_target(self, topic: str, partitions: int) -> Target:
        configs = self._cluster.configs(topic)
        by_key = "compact" in (configs["cleanup.policy"] or "")
        return Target(topic, partitions, int(configs["max.message.bytes"] or 0), by_key)

    def readers(self, topic: str) -> list[str]:
        """Return the flows and views that read the topic."""
        flows = [
            f"flow {flow.name}"
            for flow in self._app.flows
            if any(source.name == topic for source in flow.reads)
        ]
        return flows + [f"view {view.name}" for view in self._app.views if view.topic.name == topic]


def size_of(letter: Letter, headers: tuple[Header, ...]) -> int:
    """Return the approximate size of a batch with only this record."""
    replay_bytes = (
        2 * len(str(letter.record_id)) + 2 * len(str(letter.origin)) + 4 * len(REPLAY) + _REPLAY_BYTES
    )
    own_bytes = sum(len(name.encode()) + len(data or b"") + _HEADER_BYTES for name, data in headers)
    headers_size = own_bytes + replay_bytes
    return _BATCH_BYTES + _RECORD_BYTES + len(letter.key or b"") + len(letter.value or b"") + headers_size


def _derived(topic: str, flow: str) -> str:
    return f"only flow {flow!r} writes topic {topic!r}: fix the flow's input, and rebuild the flow"


def _already_written(letter: Letter, mark: Mark) -> str:
    if mark.letter == letter.record_id:
        return f"it was written back before, to {mark.to}"
    return f"the same record was written back before, by letter {mark.letter}, to {mark.to}"


def _schema_mismatch(topic: Topic, letter: Letter) -> str:
    if topic.schema is None:
        return ""
    try:
        if letter.value is not None:
            topic.decode(letter.value)
        elif topic.kind == "events":
            return "null, but events cannot be deleted"
    except ValueDoesNotFit as error:
        return error.message[:_WHY_CHARS_MAX]
    return ""
