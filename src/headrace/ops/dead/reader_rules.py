"""What the flows and views of an app would do with a record that is written back now.

The rules are those of the readers themselves: the schema, plausible event times, late events, and the keys of views.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from headrace.app import App
from headrace.model.codec.codec import codec_of
from headrace.model.declarations import Flow, Topic, View
from headrace.model.errors import ValueDoesNotFit
from headrace.model.rejection import Reason

__all__ = ["FlowTimes", "Outcome", "ReaderOutcome", "ReaderRules", "readers_of"]

_EARLIEST_US = 365 * 86_400 * 1_000_000
"""The end of 1970. Earlier event times come from clocks that were not set."""
_NOTE_CHARS_MAX = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Outcome = Literal["accepts", "repeats", "late", "rejects"]


class ReaderOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a flow or a view would do with the record."""

    reader: str
    outcome: Outcome
    """``repeats``: the flow has processed the original record, and would count the copy a second time. ``late``: the
    flow would not pass the record to its function.
    """
    note: str = ""


def readers_of(app: App, topic: str) -> list[Flow | View]:
    flows = [flow for flow in app.flows if any(source.name == topic for source in flow.reads)]
    return [*flows, *(view for view in app.views if view.topic.name == topic)]


@dataclass(frozen=True, slots=True)
class FlowTimes:
    """The event times that a flow has reached, and what it does with late events."""

    late: str
    """``drop`` or ``side``."""
    newest_us: Mapping[str, Mapping[str, int]]
    """The newest event time by topic and partition."""
    watermark_us: int | None


class ReaderRules:
    """``future_us`` is how far an event time may be ahead of the log's timestamp (setting ``flow.future_ms``).
    ``times_of`` returns None for a flow that keeps late events.
    """

    def __init__(self, app: App, future_us: int, times_of: Callable[[Flow], FlowTimes | None]) -> None:
        self._app = app
        self._future_us = future_us
        self._times_of = times_of

    def outcomes(
        self,
        topic: Topic,
        key: bytes | None,
        value: bytes | None,
        now_ms: int,
        accepted_by: Collection[str] = (),
        partition: int = -1,
    ) -> list[ReaderOutcome]:
        """The record is written to ``partition``, if it is known. ``accepted_by`` has the dead-letter topics of the
        flows that have processed the original record.
        """
        fields, fault = self._decode(topic, value)
        outcomes = []
        for reader in readers_of(self._app, topic.name):
            name = f"{'flow' if isinstance(reader, Flow) else 'view'} {reader.name}"
            if fault:
                reader_fault = fault
            elif isinstance(reader, Flow):
                reader_fault = self._time_fault(topic, fields, now_ms)
            else:
                reader_fault = _key_fault(topic, reader, fields, key)
            late = self._late(reader, topic, fields, partition) if isinstance(reader, Flow) else None
            if reader_fault:
                outcomes.append(ReaderOutcome(name, "rejects", reader_fault[:_NOTE_CHARS_MAX]))
            elif late is not None:
                outcomes.append(ReaderOutcome(name, *late))
            elif reader.dead_topic in accepted_by and isinstance(reader, Flow) and topic.kind == "events":
                note = "it has processed the original record, and would count the copy too"
                outcomes.append(ReaderOutcome(name, "repeats", note))
            else:
                outcomes.append(ReaderOutcome(name, "accepts"))
        return outcomes

    def fault(self, topic: Topic, value: bytes | None, now_ms: int) -> str:
        """Return why the value does not fit the topic; empty if it fits."""
        fields, fault = self._decode(topic, value)
        return (fault or self._time_fault(topic, fields, now_ms))[:_NOTE_CHARS_MAX]

    def _decode(self, topic: Topic, value: bytes | None) -> tuple[dict[str, Any] | None, str]:
        if topic.schema is None:
            return None, ""
        if value is None:
            return None, "null, but events cannot be deleted" if topic.kind == "events" else ""
        return _fault_of(lambda: topic.decode(value))

    def _late(
        self, flow: Flow, topic: Topic, fields: dict[str, Any] | None, partition: int
    ) -> tuple[Outcome, str] | None:
        """Return the outcome if the event is too old for the flow."""
        at = fields.get(topic.time) if fields is not None and topic.time else None
        times = self._times_of(flow) if isinstance(at, datetime) else None
        if times is None or not isinstance(at, datetime):
            return None
        event_us = (at - _EPOCH) // _MICROSECOND
        newest_us = times.newest_us.get(topic.name, {}).get(str(partition))
        if newest_us is not None and event_us < newest_us - topic.late // _MICROSECOND:
            what = "writes it to the topic of late events" if times.late == "side" else "leaves it out"
            return "late", f"it is more than {topic.late} behind the newest event, so the flow {what}"
        if times.watermark_us is not None and event_us < times.watermark_us:
            return "rejects", Reason.BEHIND.text
        return None

    def _time_fault(self, topic: Topic, fields: dict[str, Any] | None, now_ms: int) -> str:
        at = fields.get(topic.time) if fields is not None and topic.time else None
        if not isinstance(at, datetime):
            return ""
        event_us = (at - _EPOCH) // _MICROSECOND
        if event_us < _EARLIEST_US or event_us > now_ms * 1_000 + self._future_us:
            return f"{topic.time} is {at.isoformat()}: {Reason.TIME.text}"
        return ""


def _key_fault(topic: Topic, view: View, fields: dict[str, Any] | None, key: bytes | None) -> str:
    """Return why the view cannot apply the record. The limits of its store are checked only by the store itself."""
    if fields is not None:
        null = next((name for name in view.key if fields.get(name) is None), None)
        return f"{null}: null is not allowed in a column of the view's key" if null else ""
    if topic.schema is None:
        return ""
    if key is None or set(topic.key) != set(view.key):
        return Reason.KEY.text
    codec = codec_of(topic.schema).key(topic.key)
    return _fault_of(lambda: codec.decode(key))[1]


def _fault_of(decode: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    try:
        return decode(), ""
    except ValueDoesNotFit as error:
        return None, error.message
