"""Derives the rows of one flow from rows of a test, in batch, without a log.

    result = derive(count_visits, [Visit("v1", "/", noon), Visit("v2", "/", later)])
    assert result.rows == [{"page": "/", "visits": 2, "last_at": later}]

Everything that could refuse the flow at its start refuses it here too: types, keys, determinism, unbounded state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.model.declarations import Flow, Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.model.schema import Schema
from headrace.settings import Settings
from headrace.settings.loader import load
from headrace.testing.records import (
    DeadRecord,
    DerivedRows,
    InvalidSample,
    LateRecord,
    Reason,
    decode_row,
    encode_sample,
    time_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compile.compiler import Compiled
    from headrace.flow.sample import SampleRecord, SampleRows

__all__ = ["FlowTester"]

_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_NO_KEY = "the row has no key"

Rows = Sequence[Any]
"""Dataclasses, mappings, ``Deleted``, or values of records as bytes."""
Batch = Rows | Mapping[Any, Rows]
"""The rows of a flow's only input, or the rows of each input by topic or by name of the topic."""


class FlowTester:
    """Call it with a flow and rows. It compiles each flow once."""

    def __init__(self, spark: SparkSession, settings: Settings | None = None) -> None:
        """``settings`` has ``flow.future_ms`` (default: the settings of ``headrace.toml`` and the environment)."""
        self._spark = spark
        self._settings = settings or load().settings
        self._flows: dict[int, tuple[Flow, Compiled, Mapping[str, Schema]]] = {}
        self._apps: dict[int, tuple[App, Sequence[Compiled], Mapping[str, Schema]]] = {}

    def __call__(
        self, flow: Flow, *batches: Batch, app: App | None = None, logged_at: datetime = _LATEST
    ) -> DerivedRows:
        """Derive the rows of the batches. The rows of a topic, in all batches, are in the order of the log, which
        decides which of them are late. An event is joined with the rows that a table has in its batch.

        ``app`` is needed for a flow whose input another flow derives without a declared schema. ``logged_at`` is the
        log's time of every record; an event time far after it makes a dead letter.
        """
        from headrace.flow.codec.codec import TimeBounds
        from headrace.flow.sample import derive_sample

        bounds = TimeBounds(self._settings.flow.future_ms * 1_000)
        compiled, schemas = self._compile(flow, app)
        samples = [_sample(flow, schemas, batch) for batch in batches]
        result = derive_sample(self._spark, compiled, schemas, samples, logged_at=logged_at, bounds=bounds)
        return _decode(compiled, schemas, result)

    def _compile(self, flow: Flow, app: App | None) -> tuple[Compiled, Mapping[str, Schema]]:
        from headrace.flow.compile.compiler import compile_app, compile_flow

        if app is not None:
            if id(app) not in self._apps:
                self._apps[id(app)] = (app, *compile_app(self._spark, app))
            _, all_compiled, schemas = self._apps[id(app)]
            compiled = next((candidate for candidate in all_compiled if candidate.flow is flow), None)
            if compiled is None:
                raise InvalidSample(f"app {app.name!r} does not declare flow {flow.name!r}")
            return compiled, schemas
        if id(flow) not in self._flows:
            unknown = [topic.name for topic in flow.reads if topic.schema is None]
            if unknown:
                raise InvalidSample(
                    f"flow {flow.name!r} reads {' and '.join(unknown)}, which has no declared schema",
                    hint="pass the app, so that the flow that writes it is compiled: derive(..., app=app)",
                )
            schemas = {topic.name: topic.schema for topic in flow.reads if topic.schema is not None}
            self._flows[id(flow)] = flow, compile_flow(self._spark, flow, dict(schemas)), schemas
        _, compiled, schemas = self._flows[id(flow)]
        return compiled, schemas


def _sample(flow: Flow, schemas: Mapping[str, Schema], batch: Batch) -> dict[str, list[SampleRecord]]:
    from headrace.flow.sample import SampleRecord

    inputs = {topic.name: dataclasses.replace(topic, schema=schemas[topic.name]) for topic in flow.reads}
    if not isinstance(batch, Mapping):
        if not isinstance(batch, (list, tuple)):
            raise InvalidSample(
                f"a batch must be a list of rows, not {batch!r:.200}", hint=f"derive({flow.name}, [row, ...])"
            )
        if len(inputs) > 1:
            raise InvalidSample(
                f"flow {flow.name!r} reads {' and '.join(inputs)}: it is not clear whose rows these are",
                hint=f"derive({flow.name}, {{{', '.join(f'{name!r}: [...]' for name in inputs)}}})",
            )
        batch = {next(iter(inputs)): batch}
    named = {topic.name if isinstance(topic, Topic) else str(topic): rows for topic, rows in batch.items()}
    if unknown := named.keys() - inputs.keys():
        raise InvalidSample(
            f"flow {flow.name!r} does not read {' or '.join(sorted(unknown))}",
            hint=f"it reads {' and '.join(inputs)}",
        )
    return {
        name: [SampleRecord(*encode_sample(inputs[name], row)) for row in rows]
        for name, rows in named.items()
    }


def _decode(compiled: Compiled, schemas: Mapping[str, Schema], result: SampleRows) -> DerivedRows:
    flow = compiled.flow
    inputs = {topic.name: dataclasses.replace(topic, schema=schemas[topic.name]) for topic in flow.reads}
    writes = dataclasses.replace(flow.writes, schema=compiled.schema)
    derived = DerivedRows(key=writes.key)
    for rejected in result.rejected:
        key, value = rejected.record.key, rejected.record.value
        if rejected.reason is not None:
            derived.dead.append(DeadRecord(rejected.topic, rejected.reason, rejected.message, value, key))
            continue
        row = decode_row(inputs[rejected.topic], key, value)
        assert isinstance(row, dict)
        assert rejected.newest_us is not None
        derived.late.append(LateRecord(rejected.topic, row, time_of(rejected.newest_us)))
    for record in result.written:
        if record.key is None and writes.key:
            derived.dead.append(DeadRecord(writes.name, Reason.KEY, _NO_KEY, record.value))
            continue
        try:
            derived.rows.append(decode_row(writes, record.key, record.value))
        except ValueDoesNotFit as error:
            # The flow writes the row, but every view rejects it.
            derived.dead.append(DeadRecord(writes.name, Reason.SCHEMA, str(error), record.value, record.key))
    return derived
