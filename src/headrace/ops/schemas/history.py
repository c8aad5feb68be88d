"""Judges whether the history of a topic fits its declared schema: the recorded versions, and a sample of the records.

A record counts as unfit if a recorded version of the schema can read it and the declared schema, after the upcasters,
cannot, or reads another value. A record that no version can read was a dead letter before; it does not count. If no
version is recorded, or the upcasters changed, that is unknown. Then unfit records count if they are more than half of
the sample.

A change of the schema by the app that recorded the versions is also refused without an unfit record, if older records
may have values that the declared schema cannot read, unless the sample has every record. After a change of the
upcasters, only the sample decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from headrace.client.sample import Sample, SampledRecord
from headrace.model.code_digest import upcast_digest
from headrace.model.codec.codec import codec_of
from headrace.model.codec.json_text import parse
from headrace.model.codec.strict_decode import expected, misfits
from headrace.model.declarations import Topic
from headrace.model.errors import AppError, SourceLocation, ValueDoesNotFit
from headrace.model.evolution import Incompatibility, incompatibilities, is_same_value
from headrace.model.schema import Schema, field_location
from headrace.model.schema_version import HISTORY_CODE, SchemaVersion, declared_version

__all__ = ["TopicHistory", "judge", "static_mistakes"]

_SHOWN_MAX = 20
"""The maximum number of mistakes of one topic."""


@dataclass(slots=True)
class _Misfit:
    """The unfit records of one field."""

    reason: str
    first: SampledRecord
    count: int = 0


@dataclass(slots=True)
class TopicHistory:
    topic: Topic
    versions: Sequence[SchemaVersion]
    sample: Sample
    mistakes: list[AppError] = field(default_factory=list)
    invalid: int = 0
    """The number of sampled records that do not fit and become dead letters."""


def judge(
    topic: Topic, versions: Sequence[SchemaVersion], sample: Sample, *, is_owner: bool = True
) -> TopicHistory:
    """``versions`` are the recorded versions of which the topic may have records. ``is_owner`` is whether this app
    recorded them. Another app may have declared fewer fields than the records have, so its versions refuse nothing.
    """
    assert topic.schema is not None
    history = TopicHistory(topic, versions, sample)
    reader = _Reader(topic, versions)
    proven: dict[str, _Misfit] = {}
    unproven: dict[str, _Misfit] = {}
    unproven_records = 0
    for record in sample.records:
        errors = reader.errors(record.value)
        # An upcaster that changes its own results is wrong for any record.
        is_proven = not errors or reader.was_readable(record.value)
        unproven_records += not is_proven
        for error in errors or reader.repetition_errors(record.value):
            misfits_by_path = proven if is_proven else unproven
            path = _normalized(error.path)
            misfit = misfits_by_path.setdefault(path, _Misfit(str(error.message), record))
            misfit.count += 1
    is_unknown = not versions or reader.upcast_changed
    if is_unknown and 2 * unproven_records > len(sample.records):
        _merge(proven, unproven)
    else:
        history.invalid = unproven_records
    mistakes: Iterator[AppError] = _record_mistakes(history, proven)
    if is_owner and not sample.is_complete:
        possible = (
            _possible_mistake(history, version, found)
            for version, found in _changes(topic, versions)
            if found.path not in proven
        )
        mistakes = chain(mistakes, possible)
    history.mistakes += islice(mistakes, _SHOWN_MAX)
    return history


def static_mistakes(topic: Topic, versions: Sequence[SchemaVersion]) -> list[AppError]:
    """Compare the declared schema with recorded versions only. What new upcasters do is known only with records."""
    assert topic.schema is not None
    mistakes = []
    for version, found in islice(_changes(topic, versions), _SHOWN_MAX):
        mistakes.append(
            AppError(
                f"topic {topic.name!r}: records of schema {version.label} do not fit field {found.path!r} of"
                f" {topic.schema.name}",
                location=_location(topic, found.path),
                code=HISTORY_CODE,
                detail=found.reason,
                hint=_ways_out(topic, found.path, found.change),
            )
        )
    return mistakes


class _Reader:
    """Reads values with the declared schema and with the recorded versions."""

    def __init__(self, topic: Topic, versions: Sequence[SchemaVersion]) -> None:
        assert topic.schema is not None
        self._topic = topic
        self._schema = topic.schema
        self._decode = codec_of(topic.schema).decode
        newest_first = sorted(versions, key=lambda item: item.version, reverse=True)
        self._versions: list[tuple[Schema, Callable[[bytes], dict[str, Any]]]] = [
            (version.schema, codec_of(version.schema).decode) for version in newest_first
        ]
        self._compares = topic.upcast is None and declared_version(newest_first[:1], topic) is None
        recorded = declared_version(versions, topic) or next(iter(newest_first), None)
        self.upcast_changed = recorded is not None and recorded.upcast != upcast_digest(topic.upcast)

    def errors(self, raw: bytes) -> list[ValueDoesNotFit]:
        """Return why the record does not fit; one error for each field."""
        upcast = self._topic.upcast
        try:
            value = raw if upcast is None else upcast.apply(raw)
        except ValueDoesNotFit as error:
            return [error]
        try:
            row = self._decode(value)
        except ValueDoesNotFit as error:
            return self._field_errors(value) or [error]
        return self._value_errors(raw, row) if self._compares else []

    def repetition_errors(self, raw: bytes) -> list[ValueDoesNotFit]:
        """Upcasters see every value, and records are read again: an upcaster must not change a value of the newest
        version, and must return the same value each time. ``raw`` fits.
        """
        upcast = self._topic.upcast
        if upcast is None:
            return []
        try:
            value = upcast.apply(raw)
            if upcast.apply(raw) != value:
                reason = "it must not use clocks or randomness"
                return [ValueDoesNotFit(f"the upcaster returned two values for one record: {reason}")]
            if upcast.apply(value) == value:
                return []
        except ValueDoesNotFit as error:
            return [ValueDoesNotFit(f"{error.message}, for a value that it had returned")]
        return [ValueDoesNotFit("the upcaster changes a value that it had returned")]

    def was_readable(self, raw: bytes) -> bool:
        return any(_row(decode, raw) is not None for _, decode in self._versions)

    def _field_errors(self, value: bytes) -> list[ValueDoesNotFit]:
        try:
            return misfits(self._schema.fields, parse(value))
        except ValueDoesNotFit:
            return []

    def _value_errors(self, raw: bytes, row: dict[str, Any]) -> list[ValueDoesNotFit]:
        """Return the fields that have another value with the declared schema than with the newest fitting version."""
        for _, decode in self._versions:
            old_row = _row(decode, raw)
            if old_row is not None:
                return [
                    ValueDoesNotFit("it was read as another value before", path=name)
                    for name, old_value in old_row.items()
                    if name in row and not is_same_value(old_value, row[name])
                ]
        return []


def _row(decode: Callable[[bytes], dict[str, Any]], raw: bytes) -> dict[str, Any] | None:
    try:
        return decode(raw)
    except ValueDoesNotFit:
        return None


def _merge(into: dict[str, _Misfit], other: dict[str, _Misfit]) -> None:
    for path, misfit in other.items():
        if path in into:
            into[path].count += misfit.count
        else:
            into[path] = misfit


def _normalized(path: str) -> str:
    """Return the path without indexes: ``items[2].price`` is ``items[].price``."""
    return re.sub(r"\[.*?\]", "[]", path)


def _changes(
    topic: Topic, versions: Sequence[SchemaVersion]
) -> Iterator[tuple[SchemaVersion, Incompatibility]]:
    """Yield the incompatible changes since the recorded versions, each field once, with the newest such version.

    Upcasters may convert values of any version. Only of a version that was recorded with the same upcasters it is known
    that they leave its values unchanged.
    """
    assert topic.schema is not None
    upcast = upcast_digest(topic.upcast)
    seen = set()
    for version in sorted(versions, key=lambda item: item.version, reverse=True):
        if upcast and version.upcast != upcast:
            continue
        for found in incompatibilities(version.schema, topic.schema):
            if found.path not in seen:
                seen.add(found.path)
                yield version, found


def _record_mistakes(history: TopicHistory, misfits_by_path: dict[str, _Misfit]) -> Iterator[AppError]:
    topic, sampled = history.topic, len(history.sample.records)
    assert topic.schema is not None
    changes = {found.path: (version, found) for version, found in _changes(topic, history.versions)}
    for path, misfit in misfits_by_path.items():
        first = misfit.first
        subject = f"field {path!r} of {topic.schema.name}" if path else topic.schema.name
        version, change = changes.get(path, (None, None))
        because = f"; {change.reason} ({version.label})" if version and change else ""
        kind = change.change if change else "added" if _is_absence(misfit.reason) else "kind"
        yield AppError(
            f"topic {topic.name!r}: {misfit.count} of {sampled} sampled records do not fit {subject}; the first is in"
            f" partition {first.partition} at offset {first.offset}",
            location=_location(topic, path),
            code=HISTORY_CODE,
            detail=f"{misfit.reason}{because}{_renamed(topic, history.versions, path)}",
            hint=_ways_out(topic, path, kind),
        )


def _possible_mistake(history: TopicHistory, version: SchemaVersion, found: Incompatibility) -> AppError:
    topic, sample = history.topic, history.sample
    assert topic.schema is not None
    return AppError(
        f"topic {topic.name!r}: older records may not fit field {found.path!r} of {topic.schema.name}; 0 of"
        f" {len(sample.records)} sampled records do not fit, but the topic has {sample.offsets}",
        location=_location(topic, found.path),
        code=HISTORY_CODE,
        detail=f"{found.reason} ({version.label})",
        hint=_ways_out(topic, found.path, found.change),
    )


def _location(topic: Topic, path: str) -> SourceLocation | None:
    if not path and topic.upcast is not None:
        return topic.upcast.location
    assert topic.schema is not None
    return field_location(topic.schema, path) or topic.location


def _ways_out(topic: Topic, path: str, change: str) -> str:
    method = "table" if topic.kind == "table" else "topic"
    ways = [
        f"correct the upcasters of topic {topic.name!r}"
        if topic.upcast
        else f"convert older values with an upcaster: app.{method}({topic.name!r}, ..., upcast=FUNCTION)",
        f"write to a new topic: app.{method}({topic.name + '_2'!r}, ...)",
    ]
    name = path.rpartition(".")[2].removesuffix("[]")
    match change:
        case "enum":
            ways.insert(0, "keep the removed values of the enum")
        case "kind" if name:
            ways.insert(0, "declare the type that the records have")
        case _ if name:
            ways.insert(0, f"give {name} a default, or the type ... | None")
    return "; or ".join(ways)


def _is_absence(reason: str) -> bool:
    return "is missing" in reason or reason.endswith("found null")


def _renamed(topic: Topic, versions: Sequence[SchemaVersion], path: str) -> str:
    """Return a sentence if a new field may be the new name of a removed field; else an empty text."""
    assert topic.schema is not None
    added = topic.schema.field(path)
    newest = max(versions, key=lambda item: item.version, default=None)
    if added is None or newest is None or newest.schema.field(path) is not None:
        return ""
    removed = [
        field.name
        for field in newest.schema.fields
        if topic.schema.field(field.name) is None and expected(field.kind) == expected(added.kind)
    ]
    if len(removed) != 1:
        return ""
    return f"; if {path} is the new name of {removed[0]}, an upcaster can move the value"
