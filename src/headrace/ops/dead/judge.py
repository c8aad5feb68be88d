"""What becomes of a letter when it is written back: where to, or why not.

A letter's headers are only what somebody wrote. So a record goes to a topic that the letters of its dead-letter topic
come from, if the app declares it and no flow writes it, whatever a letter says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.errors import ValueDoesNotFit
from headrace.model.topic import Topic
from headrace.model.values import codec_of
from headrace.ops.dead.dead_topic import dead_topics
from headrace.ops.dead.letter import REPLAY, Header, Letter, Origin, Place
from headrace.ops.dead.mark import Mark

__all__ = ["Judge", "Result", "Target"]

_BATCH_BYTES = 61
_RECORD_BYTES = 32
_HEADER_BYTES = 10
_REPLAY_BYTES = 200
"""For the headers that say what it is a replay of, besides the names in them."""
_WHY_CHARS_MAX = 500

State = Literal["ready", "written", "already", "cannot"]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one letter. ``ready`` is what a dry run says of one that would be written."""

    letter: Place
    state: State
    origin: Origin | None = None
    to: Place | None = None
    """Where the record is now; offset -1 where it is not there yet."""
    bytes: int = 0
    why: str = ""
    """Why it is not written."""
    unfit: str = ""
    """Why it will be a dead letter again, where its value does not fit the topic's schema today either."""
    headers: Literal["kept", "unknown"] = "kept"
    """``unknown`` where the record is gone, and its own headers with it, if it had any."""


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partitions: int
    bytes_max: int
    by_key: bool
    """Whether it is kept by key, and takes no record without one."""


class Judge:
    """What it has heard of the log it keeps; whoever was told otherwise by the log makes another."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._cluster = cluster
        self._app = app
        self._declared = {topic.name: topic for topic in app.topics}
        self._origins: dict[str, frozenset[str]] = {}
        for dead in dead_topics(app):
            self._origins[dead.name] = self._origins.get(dead.name, frozenset()) | dead.origins
        self._targets: dict[str, Target | None] = {}

    def why_not(self, letter: Letter) -> str:
        """Empty for one that can be written back, as far as the app alone says."""
        if letter.origin is None:
            if letter.exception == "RowWithoutKey":
                return "a flow derived this row and it has no key: it came from no topic"
            return "the letter does not say which topic it came from"
        name = letter.origin.topic
        topic = self._declared.get(name)
        if topic is not None:
            flow = self._app.writer_of(topic)
            return self._foreign(letter.place.topic, name) if flow is None else _derived(name, flow.name)
        for one in self._app.topics:
            flow = self._app.writer_of(one)
            if flow is not None and re.fullmatch(re.escape(one.name) + r"\.g[0-9]+", name):
                return _derived(name, flow.name)
        return f"the app does not declare topic {name[:250]!r}, so nothing of it reads there"

    def _foreign(self, dead: str, origin: str) -> str:
        """Empty where letters of the topic come from there."""
        origins = self._origins.get(dead, frozenset())
        if origin in origins:
            return ""
        known = ", ".join(sorted(origins)) or "no topic of the app"
        return f"letters of {dead!r} come from {known[:250]}, and this one names {origin[:250]!r}"

    def judge(self, letter: Letter, mark: Mark | None, headers: tuple[Header, ...] | None) -> Result:
        """``mark`` is the one that counts; ``headers`` are the record's own, None where nobody knows them."""
        kept: Literal["kept", "unknown"] = "unknown" if headers is None else "kept"
        told = {"letter": letter.place, "origin": letter.origin, "headers": kept}
        if mark is not None:
            return Result(state="already", to=mark.to, why=_already(letter, mark), **told)  # type: ignore[arg-type]
        why = self.why_not(letter)
        if why:
            return Result(state="cannot", why=why, **told)  # type: ignore[arg-type]
        assert letter.origin is not None
        target = self.target(letter.origin.topic)
        if target is None:
            why = f"topic {letter.origin.topic!r} is not in the log any more"
            return Result(state="cannot", why=why, **told)  # type: ignore[arg-type]
        size = size_of(letter, headers or ())
        to = Place(target.topic, self.partition(letter), -1)
        if size > target.bytes_max:
            why = f"it is about {size:,} bytes, and topic {target.topic!r} takes {target.bytes_max:,}"
            return Result(state="cannot", bytes=size, why=why, **told)  # type: ignore[arg-type]
        if letter.key is None and target.by_key:
            why = f"it has no key, and topic {target.topic!r} is kept by key"
            return Result(state="cannot", bytes=size, why=why, **told)  # type: ignore[arg-type]
        unfit = _unfit(self._declared[target.topic], letter)
        return Result(state="ready", to=to, bytes=size, unfit=unfit, **told)  # type: ignore[arg-type]

    def partition(self, letter: Letter) -> int:
        """The one it came from, behind which the records of its key are; -1 leaves it to the key."""
        assert letter.origin is not None
        target, number = self.target(letter.origin.topic), letter.origin.partition
        return -1 if number is None or target is None or number >= target.partitions else number

    def target(self, topic: str) -> Target | None:
        if topic not in self._targets:
            info = self._cluster.topic(topic)
            self._targets[topic] = None if info is None else self._asked(topic, info.partitions)
        return self._targets[topic]

    def _asked(self, topic: str, partitions: int) -> Target:
        configs = self._cluster.configs(topic)
        by_key = "compact" in (configs["cleanup.policy"] or "")
        return Target(topic, partitions, int(configs["max.message.bytes"] or 0), by_key)

    def readers(self, topic: str) -> list[str]:
        """Who gets what is written there."""
        found = [f"flow {one.name}" for one in self._app.flows if any(two.name == topic for two in one.reads)]
        return found + [f"view {one.name}" for one in self._app.views if one.topic.name == topic]


def size_of(letter: Letter, headers: tuple[Header, ...]) -> int:
    """About as many bytes as it takes by itself."""
    names = 2 * len(str(letter.place)) + 2 * len(str(letter.origin)) + 4 * len(REPLAY) + _REPLAY_BYTES
    own = sum(len(name.encode()) + len(data or b"") + _HEADER_BYTES for name, data in headers)
    return _BATCH_BYTES + _RECORD_BYTES + len(letter.key or b"") + len(letter.value or b"") + own + names


def _derived(topic: str, flow: str) -> str:
    return (
        f"flow {flow!r} writes topic {topic!r}, and nobody else may: mend what it derives from, and rebuild"
    )


def _already(letter: Letter, mark: Mark) -> str:
    if mark.letter == letter.place:
        return f"it was written back before, to {mark.to}"
    return f"the same record was written back before, by letter {mark.letter}, to {mark.to}"


def _unfit(topic: Topic, letter: Letter) -> str:
    if topic.schema is None:
        return ""
    try:
        if letter.value is not None:
            codec_of(topic.schema).decode(letter.value)
        elif topic.kind == "events":
            return "null, and events are never deleted"
    except ValueDoesNotFit as error:
        return error.message[:_WHY_CHARS_MAX]
    return ""
