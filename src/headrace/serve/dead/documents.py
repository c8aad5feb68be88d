"""The JSON documents of requests and responses about dead letters."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.clock import time_json
from headrace.model.rejection import LetterState, Reason
from headrace.ops.dead.dead_topic import DeadTopic
from headrace.ops.dead.letter import Letter, Origin
from headrace.ops.dead.letter_index import LetterInfo, Refusal
from headrace.ops.dead.letter_job import NAMED_MAX, JobRequest, LetterJob
from headrace.ops.dead.letter_states import StateRecord
from headrace.ops.dead.reader_rules import Outcome
from headrace.ops.dead.replay_rules import ResultState

__all__ = [
    "CorrectionWanted",
    "DeadTopicSummary",
    "DeadTopics",
    "DismissalWanted",
    "JobStatus",
    "Letters",
    "ReplayWanted",
    "letter_document",
    "topic_summary",
]

_FIELD_BYTES_MAX = 16 * 1024
"""Maximum bytes of a key, a value or a header in a response. The rest is cut off."""
_HEADERS_MAX = 100

_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class DeadTopicSummary(msgspec.Struct, frozen=True):
    topic: str
    kind: Literal["flow", "view", "spring"]
    of: str
    letters: Annotated[int, Meta(description="The number of rejected records, in any state.")]
    open: int
    replayed: int
    settled: int
    dismissed: int
    unread: Annotated[
        int,
        Meta(
            description="Offsets that the index has yet to read. While it is not 0, the other numbers are too low."
        ),
    ]
    bytes: int | None


class DeadTopics(msgspec.Struct, frozen=True):
    app: str
    topics: list[DeadTopicSummary]


class LetterOrigin(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    offset: int | None


class LetterRefusal(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    kind: Literal["flow", "view", "spring"]
    of: str
    time: _Time
    reason: Reason
    generation: Annotated[
        int | None,
        Meta(
            description="The generation of the flow that rejected the record, or that wrote the view's topic."
        ),
    ]
    settled: Annotated[bool, Meta(description="True if a newer generation has processed the record.")]


class LetterChange(msgspec.Struct, frozen=True):
    """When and how someone handled the letter."""

    at: _Time
    to: Annotated[Any, Meta(description="The record that was written back; null for a dismissed letter.")]
    corrected: bool
    reason: Annotated[str, Meta(description="Why the letter was dismissed; otherwise empty.")]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """``key`` and ``value`` contain text. If the bytes are not text, ``key_base64`` and ``value_base64`` contain
    them.
    """

    partition: int
    offset: int
    time: _Time
    state: LetterState
    reason: Reason
    message: Annotated[str, Meta(description="Details of the reason.")]
    exception: str
    writer: str
    origin: LetterOrigin | None
    refusals: Annotated[
        list[LetterRefusal],
        Meta(
            description="All rejections of the record, oldest first, in the topics that the token may read."
        ),
    ]
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    key_bytes: int | None
    key_cut: bool | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    value_bytes: int | None
    value_cut: bool | UnsetType = UNSET
    headers: list[dict[str, Any]]
    change: LetterChange | None
    cannot: Annotated[str, Meta(description="Why the letter cannot be written back; empty if it can.")]


class Letters(msgspec.Struct, frozen=True):
    topic: str
    letters: list[DeadLetter]
    at_end: bool
    next: str | None


class LetterId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]


_NamedLetters = Annotated[list[LetterId], Meta(min_length=1, max_length=NAMED_MAX)]
_Force = Annotated[
    bool, Meta(description="Also handle letters that are not open: replayed, settled or dismissed ones.")
]


class ReplayWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letters: _NamedLetters | Literal["all"]
    dry_run: bool = False
    force: _Force = False
    per_s: Annotated[float, Meta(ge=0.1, le=100_000)] | None = None

    def job_request(self) -> JobRequest:
        return JobRequest(_coordinates(self.letters), self.dry_run, self.force, self.per_s)


class DismissalWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letters: _NamedLetters | Literal["all"]
    reason: Annotated[
        str, Meta(min_length=1, max_length=1_000, description="Why the records are not needed.")
    ]
    dry_run: bool = False
    force: _Force = False

    def job_request(self) -> JobRequest:
        return JobRequest(_coordinates(self.letters), self.dry_run, self.force, dismissal=self.reason)


class CorrectionWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letter: LetterId
    value: Annotated[
        str, Meta(description="The value to write instead. It must match the schema of the topic.")
    ]
    dry_run: bool = False
    force: _Force = False

    def job_request(self) -> JobRequest:
        return JobRequest(_coordinates([self.letter]), self.dry_run, self.force, value=self.value.encode())


def _coordinates(letters: list[LetterId] | str) -> list[tuple[int, int]] | None:
    return None if isinstance(letters, str) else [(letter.partition, letter.offset) for letter in letters]


class JobProgress(msgspec.Struct, frozen=True):
    done: int
    of: int


class JobTotals(msgspec.Struct, frozen=True):
    written: int
    dismissed: int
    ready: int
    skipped: int
    cannot: int
    unfit: Annotated[int, Meta(description="Records that a flow or a view would reject again.")]
    repeats: Annotated[int, Meta(description="Records that a flow accepted before, and would count twice.")]
    bytes: int


class RecordId(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


class ReaderResult(msgspec.Struct, frozen=True):
    reader: str
    outcome: Outcome
    note: str = ""


class LetterResult(msgspec.Struct, frozen=True, kw_only=True):
    letter: RecordId
    state: ResultState
    origin: LetterOrigin | None = None
    to: RecordId | None = None
    bytes: int = 0
    why: str = ""
    unfit: str = ""
    readers: Annotated[
        list[ReaderResult],
        Meta(description="What each flow and view that reads the topic would do with the record."),
    ] = []
    headers: Literal["kept", "unknown"] = "kept"


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last job of a topic. If the topic has no job yet, only the first three fields are present."""

    topic: str
    state: Literal["idle", "running", "done", "cancelled", "failed"]
    job: str | None
    action: Literal["replay", "correct", "dismiss"] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    force: bool | UnsetType = UNSET
    began: _Time | UnsetType = UNSET
    ended: _Time | UnsetType | None = UNSET
    progress: JobProgress | UnsetType = UNSET
    totals: JobTotals | UnsetType = UNSET
    words: list[str] | UnsetType = UNSET
    results: list[LetterResult] | UnsetType = UNSET
    left_off: (
        Annotated[int, Meta(description="Number of results that are counted but not listed.")] | UnsetType
    ) = UNSET
    error: dict[str, Any] | UnsetType | None = UNSET

    @classmethod
    def of(cls, topic: str, job: LetterJob | None) -> JobStatus:
        if job is None:
            return cls(topic=topic, state="idle", job=None)
        states, results, done, request = job.states, job.results, job.done, job.request
        return cls(
            topic=topic,
            state=job.state,
            job=job.id,
            action=request.action,
            dry_run=request.dry_run,
            force=request.force,
            began=time_json(job.began_ms),
            ended=None if job.ended_ms is None else time_json(job.ended_ms),
            progress=JobProgress(done, max(done, job.total)),
            totals=JobTotals(
                **{name: states[name] for name in ("written", "dismissed", "ready", "skipped", "cannot")},
                unfit=job.unfit,
                repeats=job.repeats,
                bytes=job.bytes,
            ),
            words=job.summary(),
            results=[msgspec.convert(msgspec.to_builtins(result), LetterResult) for result in results],
            left_off=max(0, done - len(results)),
            error=None if job.error is None else dict(job.error.facts()),
        )


def topic_summary(
    topic: DeadTopic, counts: Mapping[LetterState, int], unread: int, size: int | None
) -> DeadTopicSummary:
    return DeadTopicSummary(
        topic.name,
        topic.kind,
        topic.owner,
        sum(counts.values()),
        open=counts.get(LetterState.OPEN, 0),
        replayed=counts.get(LetterState.REPLAYED, 0),
        settled=counts.get(LetterState.SETTLED, 0),
        dismissed=counts.get(LetterState.DISMISSED, 0),
        unread=unread,
        bytes=size,
    )


def letter_document(
    letter: Letter, info: LetterInfo, cannot: str, owners: Mapping[str, DeadTopic]
) -> DeadLetter:
    """``owners`` has the dead-letter topics whose refusals are listed."""
    return DeadLetter(
        partition=letter.record_id.partition,
        offset=letter.record_id.offset,
        time=time_json(max(0, letter.at_ms)),
        state=info.state,
        reason=letter.reason,
        message=letter.message,
        exception=letter.exception,
        writer=letter.writer,
        origin=_origin(letter.origin),
        refusals=[
            _refusal(refusal, owner)
            for refusal in info.refusals
            if (owner := owners.get(refusal.record_id.topic)) is not None
        ],
        **_payload_fields("key", letter.key),
        **_payload_fields("value", letter.value),
        headers=[
            {"name": name, **_payload_fields("value", raw)} for name, raw in letter.headers[:_HEADERS_MAX]
        ],
        change=None if info.record is None else _change(info.record),
        cannot=cannot,
    )


def _refusal(refusal: Refusal, owner: DeadTopic) -> LetterRefusal:
    record_id = refusal.record_id
    return LetterRefusal(
        *(record_id.topic, record_id.partition, record_id.offset, owner.kind, owner.owner),
        time_json(max(0, refusal.at_ms)),
        *(refusal.reason, refusal.generation, refusal.is_settled),
    )


def _change(record: StateRecord) -> LetterChange:
    return LetterChange(time_json(record.at_ms), record.to, record.corrected, record.reason)


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
