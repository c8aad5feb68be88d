"""The JSON documents of requests and responses about dead letters."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.clock import time_json
from headrace.ops.dead.letter import Letter, Origin
from headrace.ops.dead.marks import Mark
from headrace.ops.dead.replay import NAMED_MAX, Replay, ReplayRequest

__all__ = ["DeadTopicSummary", "DeadTopics", "Letters", "ReplayStatus", "ReplayWanted", "letter_document"]

_FIELD_BYTES_MAX = 16 * 1024
"""Maximum bytes of a key, a value or a header in a response. The rest is cut off."""
_HEADERS_MAX = 100

_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class DeadTopicSummary(msgspec.Struct, frozen=True):
    topic: str
    kind: Literal["flow", "view", "spring"]
    of: str
    letters: int
    exact: Annotated[
        bool,
        Meta(description="True if letters is exact; false if it counts offsets and can be too high."),
    ]
    replayed: int
    bytes: int | None


class DeadTopics(msgspec.Struct, frozen=True):
    app: str
    topics: list[DeadTopicSummary]


class LetterOrigin(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    offset: int | None


class ReplayedTo(msgspec.Struct, frozen=True):
    to: Any
    at: _Time


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """``key`` and ``value`` contain text. If the bytes are not text, ``key_base64`` and ``value_base64`` contain
    them.
    """

    partition: int
    offset: int
    time: _Time
    reason: str
    exception: str
    writer: str
    origin: LetterOrigin | None
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    key_bytes: int | None
    key_cut: bool | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    value_bytes: int | None
    value_cut: bool | UnsetType = UNSET
    headers: list[dict[str, Any]]
    replayed: ReplayedTo | None
    cannot: Annotated[str, Meta(description="Why the letter cannot be written back; empty if it can.")]


class Letters(msgspec.Struct, frozen=True):
    topic: str
    letters: list[DeadLetter]
    at_end: bool
    next: str | None


class LetterId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ReplayWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letters: Annotated[list[LetterId], Meta(min_length=1, max_length=NAMED_MAX)] | Literal["all"]
    dry_run: bool = False
    again: Annotated[bool, Meta(description="Also write back letters that were written back before.")] = False
    per_s: Annotated[float, Meta(ge=0.1, le=100_000)] | None = None

    def replay_request(self) -> ReplayRequest:
        ids = (
            None if self.letters == "all" else [(letter.partition, letter.offset) for letter in self.letters]
        )
        return ReplayRequest(ids, self.dry_run, self.again, self.per_s)


class ReplayProgress(msgspec.Struct, frozen=True):
    done: int
    of: int


class ReplayTotals(msgspec.Struct, frozen=True):
    written: int
    ready: int
    already: int
    cannot: int
    unfit: int
    bytes: int


class RecordId(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    letter: RecordId
    state: Literal["ready", "written", "already", "cannot"]
    origin: LetterOrigin | None = None
    to: RecordId | None = None
    bytes: int = 0
    why: str = ""
    unfit: str = ""
    headers: Literal["kept", "unknown"] = "kept"


class ReplayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last replay of a topic. If the topic has no replay yet, only the first three fields are present."""

    topic: str
    state: Literal["idle", "running", "done", "cancelled", "failed"]
    replay: str | None
    dry_run: bool | UnsetType = UNSET
    again: bool | UnsetType = UNSET
    began: _Time | UnsetType = UNSET
    ended: _Time | UnsetType | None = UNSET
    progress: ReplayProgress | UnsetType = UNSET
    totals: ReplayTotals | UnsetType = UNSET
    words: list[str] | UnsetType = UNSET
    results: list[ReplayResult] | UnsetType = UNSET
    left_off: (
        Annotated[int, Meta(description="Number of results that are counted but not listed.")] | UnsetType
    ) = UNSET
    error: dict[str, Any] | UnsetType | None = UNSET

    @classmethod
    def of(cls, topic: str, replay: Replay | None) -> ReplayStatus:
        if replay is None:
            return cls(topic=topic, state="idle", replay=None)
        states, results, done = replay.states, replay.results, replay.done
        return cls(
            topic=topic,
            state=replay.state,
            replay=replay.id,
            dry_run=replay.request.dry_run,
            again=replay.request.again,
            began=time_json(replay.began_ms),
            ended=None if replay.ended_ms is None else time_json(replay.ended_ms),
            progress=ReplayProgress(done, max(done, replay.total)),
            totals=ReplayTotals(
                written=states["written"],
                ready=states["ready"],
                already=states["already"],
                cannot=states["cannot"],
                unfit=replay.unfit,
                bytes=replay.bytes,
            ),
            words=replay.summary(),
            results=[msgspec.convert(msgspec.to_builtins(result), ReplayResult) for result in results],
            left_off=max(0, done - len(results)),
            error=None if replay.error is None else dict(replay.error.facts()),
        )


def letter_document(letter: Letter, mark: Mark | None, cannot: str) -> DeadLetter:
    return DeadLetter(
        partition=letter.record_id.partition,
        offset=letter.record_id.offset,
        time=time_json(max(0, letter.at_ms)),
        reason=letter.reason,
        exception=letter.exception,
        writer=letter.writer,
        origin=_origin(letter.origin),
        **_payload_fields("key", letter.key),
        **_payload_fields("value", letter.value),
        headers=[
            {"name": name, **_payload_fields("value", raw)} for name, raw in letter.headers[:_HEADERS_MAX]
        ],
        replayed=None if mark is None else ReplayedTo(mark.to, time_json(mark.at_ms)),
        cannot=cannot,
    )


def _origin(origin: Origin | None) -> LetterOrigin | None:
    return None if origin is None else LetterOrigin(origin.topic, origin.partition, origin.offset)


def _payload_fields(name: str, raw: bytes | None) -> dict[str, Any]:
    """Return the fields of one key, value or header: its text or base64, its size in bytes, and whether it is cut."""
    if raw is None:
        return {name: None, f"{name}_bytes": None}
    fields: dict[str, Any] = {f"{name}_bytes": len(raw)}
    if len(raw) > _FIELD_BYTES_MAX:
        fields[f"{name}_cut"] = True
    truncated_bytes = raw[:_FIELD_BYTES_MAX]
    try:
        return {name: _text(truncated_bytes, is_cut=len(raw) > len(truncated_bytes)), **fields}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(truncated_bytes).decode(), **fields}


def _text(truncated_bytes: bytes, *, is_cut: bool) -> str:
    """Decode the text. If it is cut, drop up to 3 bytes at its end, because the cut can split a UTF-8 character."""
    for dropped in range(4 if is_cut else 1):
        try:
            return truncated_bytes[: len(truncated_bytes) - dropped].decode()
        except UnicodeDecodeError:
            if dropped == 3 or not is_cut:
                raise
    raise AssertionError
