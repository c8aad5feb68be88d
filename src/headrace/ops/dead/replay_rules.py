"""Rules that decide whether a letter can be written back, and to which topic.

The headers of a letter are not trusted, because any client could have written them. So a letter is written back only to
a topic that the app declares, that no flow writes, and that the dead-letter topic's flow or view reads.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import progress_of
from headrace.model.codec.codec import codec_of
from headrace.model.declarations import Flow
from headrace.model.rejection import LetterState, Reason
from headrace.ops.dead.dead_topic import dead_topics
from headrace.ops.dead.letter import REPLAY, Header, Letter, Origin, RecordId
from headrace.ops.dead.letter_index import LetterIndex, LetterInfo
from headrace.ops.dead.letter_states import StateRecord, flow_that_derives
from headrace.ops.dead.reader_rules import FlowTimes, ReaderOutcome, ReaderRules, readers_of

__all__ = [
    "Content",
    "ReplayRules",
    "Result",
    "ResultState",
    "Target",
    "dismissal_result",
    "skip_reason",
    "state_text",
]

_BATCH_BYTES = 61
_RECORD_BYTES = 32
_HEADER_BYTES = 10
_REPLAY_BYTES = 200
"""Bytes of the replay headers, without the record ids in them."""
ResultState = Literal["ready", "written", "dismissed", "skipped", "cannot"]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome for one letter. A dry run returns ``ready`` for a letter that would be written or dismissed.
    ``skipped`` are letters that are not open, and letters that a flow has yet to read again.
    """

    letter: RecordId
    state: ResultState
    origin: Origin | None = None
    to: RecordId | None = None
    """The written record. Its offset is -1 until it is written."""
    bytes: int = 0
    why: str = ""
    """Why the letter is not written."""
    unfit: str = ""
    """Why a flow or a view would reject the written record again. Otherwise empty."""
    readers: list[ReaderOutcome] = []
    """What each flow and view that reads the topic would do with the record."""
    headers: Literal["kept", "unknown"] = "kept"
    """``unknown`` if the original record was deleted, and its headers with it."""


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partitions: int
    bytes_max: int
    by_key: bool
    """Whether the topic is compacted, and so rejects a record without a key."""


@dataclass(frozen=True, slots=True)
class Content:
    """The key and the value to write: those of the letter, or corrected ones."""

    key: bytes | None
    value: bytes | None


class ReplayRules:
    """Caches topics and configs of the log. After a change in the log, create a new instance."""

    def __init__(self, cluster: Cluster, app: App, future_us: int) -> None:
        self._cluster = cluster
        self._app = app
        self._readers = ReaderRules(app, future_us, functools.cache(self._times_of))
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
            if letter.reason is Reason.KEY:
                return "a flow derived this row without a key, so it has no original topic"
            return "the letter does not name its original topic"
        name = letter.origin.topic
        flow = flow_that_derives(self._app, name)
        if flow is not None:
            return (
                f"only flow {flow.name!r} writes topic {name!r}: fix the flow's input, and rebuild the flow"
            )
        if name in self._declared:
            return self._origin_refusal(letter.record_id.topic, name)
        return f"the app does not declare topic {name[:250]!r}, so no flow or view reads it"

    def _origin_refusal(self, dead_topic: str, origin: str) -> str:
        """Return why letters of ``dead`` cannot come from ``origin``; empty if they can."""
        origins = self._origins.get(dead_topic, frozenset())
        if origin in origins:
            return ""
        known = ", ".join(sorted(origins)) or "no topic of the app"
        return f"letters of {dead_topic!r} come from {known[:250]}, but this letter names {origin[:250]!r}"

    def check(
        self,
        letter: Letter,
        content: Content,
        index: LetterIndex,
        headers: tuple[Header, ...] | None,
        now_ms: int,
        *,
        force: bool,
    ) -> Result:
        """Check whether the letter can be written back. ``headers`` are the record's own headers; None if unknown."""
        kept: Literal["kept", "unknown"] = "unknown" if headers is None else "kept"
        info = index.find(letter.id)
        skipped = skip_reason(info, force=force)
        if skipped:
            to = info.record.to if info is not None and info.record is not None else None
            return _result(letter, "skipped", to=to, why=skipped, headers=kept)
        why = self.refusal(letter)
        if why:
            return _result(letter, "cannot", why=why, headers=kept)
        assert letter.origin is not None
        target = self.target(letter.origin.topic)
        if target is None:
            why = f"topic {letter.origin.topic!r} no longer exists"
            return _result(letter, "cannot", why=why, headers=kept)
        size = size_of(letter, content, headers or ())
        if size > target.bytes_max:
            why = f"it has about {size:,} bytes; topic {target.topic!r} accepts at most {target.bytes_max:,}"
            return _result(letter, "cannot", why=why, size=size, headers=kept)
        if content.key is None and target.by_key:
            why = f"it has no key, but topic {target.topic!r} is compacted"
            return _result(letter, "cannot", why=why, size=size, headers=kept)
        topic, accepted_by = self._declared[target.topic], index.accepted_by(letter)
        partition = self.partition(letter, content)
        outcomes = self._readers.outcomes(topic, content.key, content.value, now_ms, accepted_by, partition)
        rejections = [outcome.note for outcome in outcomes if outcome.outcome == "rejects"]
        unfit = self._readers.fault(topic, content.value, now_ms) or next(iter(rejections), "")
        to = RecordId(target.topic, partition, -1)
        return _result(letter, "ready", to=to, size=size, unfit=unfit, readers=outcomes, headers=kept)

    def _times_of(self, flow: Flow) -> FlowTimes | None:
        progress = progress_of(self._cluster, flow)
        if progress is None or progress.last is None or progress.generation.late not in ("drop", "side"):
            return None
        last = progress.last
        generation = progress.generation
        watermark_us = last.next_watermark_us if generation.has_watermark else None
        return FlowTimes(generation.late, last.next_newest_us, watermark_us)

    def value_fault(self, topic: str, value: bytes | None, now_ms: int) -> str:
        """Return why a value does not fit the declared topic; empty if it fits."""
        return self._readers.fault(self._declared[topic], value, now_ms)

    def key_of(self, topic: str, value: bytes) -> bytes | None:
        """Return the key of a record with this value; None if the topic declares no key. The value must fit."""
        declared = self._declared[topic]
        if declared.schema is None or not declared.key:
            return None
        codec = codec_of(declared.schema)
        return codec.key(declared.key).encode(codec.decode(value))

    def partition(self, letter: Letter, content: Content) -> int:
        """Return the original partition, which has the other records of the key. -1 means that the client chooses the
        partition by the key.
        """
        assert letter.origin is not None
        target, number = self.target(letter.origin.topic), letter.origin.partition
        if number is None or target is None or number >= target.partitions or content.key != letter.key:
            return -1
        return number

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
        return [
            f"{'flow' if isinstance(reader, Flow) else 'view'} {reader.name}"
            for reader in readers_of(self._app, topic)
        ]


def dismissal_result(letter: Letter, index: LetterIndex, *, force: bool) -> Result:
    """Check whether the letter can be dismissed."""
    skipped = skip_reason(index.find(letter.id), force=force)
    return _result(letter, "skipped" if skipped else "ready", why=skipped, headers="kept")


def skip_reason(info: LetterInfo | None, *, force: bool) -> str:
    """Return why the letter is skipped unless the user forces it; empty if it is open."""
    if info is None or force:
        return ""
    if info.record is not None:
        return f"it {state_text(info.record)}"
    if info.state is LetterState.SETTLED:
        return "it is settled: a newer generation of the flow or view has processed its record"
    awaited = next((refusal for refusal in info.refusals if refusal.is_awaited), None)
    if awaited is not None:
        return "a newer generation of the flow has yet to read its record, and may accept it"
    return ""


def state_text(record: StateRecord) -> str:
    if record.state == "dismissed":
        return f"was dismissed: {record.reason}"
    corrected = ", with a corrected value" if record.corrected else ""
    return f"was written back to {record.to}{corrected}"


def _result(
    letter: Letter,
    state: ResultState,
    *,
    headers: Literal["kept", "unknown"],
    to: RecordId | None = None,
    why: str = "",
    size: int = 0,
    unfit: str = "",
    readers: Sequence[ReaderOutcome] = (),
) -> Result:
    return Result(letter.record_id, state, letter.origin, to, size, why, unfit, [*readers], headers)


def size_of(letter: Letter, content: Content, headers: tuple[Header, ...]) -> int:
    """Return the approximate size of a batch with only this record."""
    replay_bytes = (
        2 * len(str(letter.record_id)) + 2 * len(str(letter.origin)) + 4 * len(REPLAY) + _REPLAY_BYTES
    )
    own_bytes = sum(len(name.encode()) + len(data or b"") + _HEADER_BYTES for name, data in headers)
    headers_size = own_bytes + replay_bytes
    return _BATCH_BYTES + _RECORD_BYTES + len(content.key or b"") + len(content.value or b"") + headers_size
