"""Why a record was rejected, the headers of a dead letter that state it, and the states of dead letters.

Flows and followers write the dead letters; ``headrace.ops.dead`` reads them. A dead letter has the unchanged key, value
and headers of the record, and these headers, all as text:

    __headrace.errors.reason       a ``Reason``
    __headrace.errors.message      details, for people
    __headrace.errors.exception    the name of an exception, for tools that expect one
    __headrace.errors.topic, .partition, .offset    the rejected record; absent for a row that a flow derived
    __headrace.errors.topic_id     the id of that topic, because an earlier topic of the same name has the same offsets
    __headrace.errors.generation   the generation of the flow that rejected the record, or that wrote the view's topic

A *build* of a view is one pass over its topic from the first record on. When a rebuild begins, and before its rows
serve, the follower writes a ``BuildRecord`` between the dead letters: a record with only the header
``__headrace.build``. The build that serves has processed all records that were rejected before it began, or has
rejected them again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = [
    "BUILD_HEADER",
    "ERRORS",
    "BuildRecord",
    "LetterState",
    "Reason",
    "Rejection",
    "generation_of",
    "parse_reason",
    "without_error_headers",
]

ERRORS = "__headrace.errors."
BUILD_HEADER = "__headrace.build"
_MESSAGE_CHARS_MAX = 1_000
_DIGITS_MAX = 18


class Reason(enum.StrEnum):
    """The reason of a dead letter. Commands, the web UI, the HTTP API and the metrics use these words."""

    SCHEMA = "schema"
    TIME = "time"
    BEHIND = "behind"
    KEY = "key"
    STORE = "store"
    CONSUMER = "consumer"
    UNKNOWN = "unknown"

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Reason.SCHEMA: "the value does not match the schema of the topic",
    Reason.TIME: "the event time is before 1971, or too far ahead of the log's timestamp",
    Reason.BEHIND: "the flow has already dropped its state for the event time; a rebuild includes the record",
    Reason.KEY: "the flow derived a row without a key, or the key of a deletion does not match the view's key",
    Reason.STORE: "the store of the view does not accept the value",
    Reason.CONSUMER: "a consumer outside of Headrace rejected the record",
    Reason.UNKNOWN: "the letter does not state a reason",
}
_REASONS = {reason.value: reason for reason in Reason}
_WITHOUT_KEY = "RowWithoutKey"
_OLD_EXCEPTIONS = {_WITHOUT_KEY: Reason.KEY, "ValueDoesNotFit": Reason.SCHEMA}


class LetterState(enum.StrEnum):
    """The state of a letter: of one rejected record, however many flows and views rejected it."""

    OPEN = "open"
    REPLAYED = "replayed"
    SETTLED = "settled"
    DISMISSED = "dismissed"

    @property
    def text(self) -> str:
        return _STATE_TEXTS[self]


_STATE_TEXTS = {
    LetterState.OPEN: "no one has handled the letter yet",
    LetterState.REPLAYED: "the record was written back to its topic",
    LetterState.SETTLED: "the flow or view was rebuilt since, and has processed the record",
    LetterState.DISMISSED: "a person dismissed the letter, with a reason",
}


class Rejection(msgspec.Struct, frozen=True):
    """Why a flow or a view rejected a record."""

    reason: Reason
    message: str
    generation: int
    """The generation of the flow that rejected the record, or that wrote the view's topic; 0 if no flow wrote it."""
    topic: str = ""
    """The topic of the record in the log. Empty for a row that the flow derived."""
    topic_id: str = ""
    partition: int = 0
    offset: int = 0

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        fields: dict[str, object] = {
            "reason": self.reason.value,
            "message": self.message[:_MESSAGE_CHARS_MAX],
            "exception": "ValueDoesNotFit" if self.topic else _WITHOUT_KEY,
            "generation": self.generation,
        }
        if self.topic:
            fields |= {
                "topic": self.topic,
                "partition": self.partition,
                "offset": self.offset,
                "topic_id": self.topic_id,
            }
        return tuple(
            (f"{ERRORS}{name}", str(value).encode("utf-8", "replace")) for name, value in fields.items()
        )


def parse_reason(text: str, exception: str) -> Reason:
    """Return the reason of a letter that Headrace wrote. Earlier releases wrote no reason, only an exception."""
    return _REASONS.get(text, Reason.UNKNOWN) if text else _OLD_EXCEPTIONS.get(exception, Reason.UNKNOWN)


def generation_of(headers: Mapping[str, bytes | None]) -> int | None:
    """Return the generation in the headers; None if an earlier release wrote the letter."""
    text = headers.get(f"{ERRORS}generation") or b""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None


def without_error_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the record's own headers. A rejected record can itself have been a dead letter."""
    return [header for header in headers if not header[0].startswith(ERRORS)]


class BuildRecord(msgspec.Struct, frozen=True):
    """A rebuild of a view begins, or is about to serve."""

    serves: bool
    topic: str
    topic_id: str
    starts: Mapping[Annotated[int, Meta(ge=0, le=2**31)], Annotated[int, Meta(ge=0, le=2**62)]]
    """The first offset of each partition when the build began. Empty if the build serves."""

    def header(self) -> tuple[str, bytes]:
        return BUILD_HEADER, msgspec.json.encode(self)

    @classmethod
    def parse(cls, header: bytes) -> BuildRecord | None:
        """Return None if the header is not a build record: any client can write to the topic."""
        try:
            return _decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


_decoder = msgspec.json.Decoder(BuildRecord)
