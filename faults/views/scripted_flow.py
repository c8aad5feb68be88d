"""A flow without Spark: a script writes transactions with rows and a progress record, and knows the expected rows."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, Producer

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress import current, wait_until_decided
from headrace.model.declarations import Flow, View
from headrace.model.progress import Batch, Driver, Generation, Input, Owner, encode
from headrace.model.schema import Schema, fields_to_json, schema_of

__all__ = ["Change", "Derived", "Sale", "ScriptedFlow", "view_of"]

Change = tuple[str, dict[str, Any] | None]
"""A product and its row, or None if the row was deleted."""


@dataclass(frozen=True)
class Sale:
    product: str
    amount: int
    note: str | None = None


def value_bytes(row: Mapping[str, Any] | None) -> bytes | None:
    return None if row is None else json.dumps(row, separators=(",", ":")).encode()


def key_bytes(product: str) -> bytes:
    return product.encode()


@dataclass
class Derived:
    """The rows that derive from the committed transactions of a generation."""

    rows: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    states: list[dict[str, tuple[Any, ...]]] = field(default_factory=lambda: [{}])
    """The rows after each batch. The first entry is the state before any batch."""

    def fold(self, changes: Sequence[Change], names: Sequence[str]) -> None:
        for product, row in changes:
            if row is None:
                self.rows.pop(product, None)
            else:
                self.rows[product] = tuple(row.get(name) for name in names)
        self.states.append(dict(self.rows))


def view_of(name: str) -> tuple[App, Flow, View]:
    """Return an app with one flow, and a view of the flow's output with this name."""
    app = App("shop")
    source = app.topic(f"{name}-in", Sale, key="product")
    output = app.topic(f"{name}-out", key="product")
    flow = app.flow(reads=[source], writes=output, name=f"{name}-flow")(_derive)
    return app, flow, app.view(name, output)


class ScriptedFlow:
    def __init__(self, cluster: Cluster, name: str, *, partitions: int = 3) -> None:
        self.cluster = cluster
        self.app, self.flow, self.view = view_of(name)
        self.topic = self.flow.writes
        self.generation = 0
        self.batches = 0
        self.consumed = 0
        self.derived = Derived()
        self.output = ""
        self._partitions = partitions
        self._names: tuple[str, ...] = ()
        self.ends: dict[int, int] = {}
        """The end offset of the last batch, for each partition."""
        self._at = 0
        cluster.ensure_topic(self.flow.progress_topic, 1, {"retention.ms": "-1"})
        self._producer = self.transactional()

    def transactional(self) -> Producer:
        """Return a new transactional producer, which fences the previous one."""
        producer = self.cluster.producer(
            {"transactional.id": self.flow.name, "linger.ms": 0, "retry.backoff.ms": 10}
        )
        producer.init_transactions(30)
        return producer

    def begin(
        self, schema: type = Sale, *, configs: Mapping[str, str] | None = None, inputs: str = ""
    ) -> Generation:
        """Begin a new generation, with its own output topic, from the start of the input."""
        self.generation += 1
        self.output = self.topic.name if self.generation == 1 else f"{self.topic.name}.g{self.generation}"
        info = self.cluster.ensure_topic(self.output, self._partitions, configs)
        self.batches, self.consumed, self.derived, self.ends = 0, 0, Derived(), {}
        row_schema: Schema = schema_of(schema)
        self._names = row_schema.names
        source = inputs or self.flow.reads[0].name
        known = self.cluster.topic(source)
        source_id = known.id if known else f"id-of-{source}"
        record = Generation(
            app="shop",
            flow=self.flow.name,
            generation=self.generation,
            fingerprint=f"f{self.generation}",
            inputs=[Input(self.flow.reads[0].name, source, source_id, "events")],
            output=self.output,
            output_id=info.id,
            key=["product"],
            schema=fields_to_json(row_schema.fields),
            checkpoint=f"c{self.generation}",
            started_ms=int(time.time() * 1_000),
        )
        self._inputs = source
        key, value = encode(record)
        self._producer.begin_transaction()
        self._producer.produce(self.flow.progress_topic, key=key, value=value, on_delivery=self._began)
        self._producer.commit_transaction(30)
        return record

    def _began(self, error: object, message: Message) -> None:
        assert error is None
        self._at = message.offset() or 0

    def batch(
        self,
        changes: Sequence[Change],
        *,
        raw: Sequence[tuple[bytes | None, bytes | None]] = (),
        consumed: int | None = None,
    ) -> int:
        """Commit one batch. ``raw`` are undecodable records. ``consumed`` is the offset at which its input ends."""
        number = self.batches
        if consumed is None:
            consumed = self.consumed + len(changes)
        self._producer.begin_transaction()
        records = [(key_bytes(product), value_bytes(row)) for product, row in changes]
        outputs = self.rows([*records, *raw])
        if number % 2 == 0:
            # As in a real flow, every partition has a range, which begins where the range of the previous
            # batch ended.
            ends = self.cluster.ends(self.output, committed=False)
            outputs = {str(partition): (self.ends.get(partition, 0), end) for partition, end in ends.items()}
        self.ends |= {int(partition): end for partition, (_, end) in outputs.items()}
        record = Batch(
            flow=self.flow.name,
            generation=self.generation,
            batch=number,
            inputs={
                self._inputs: {str(number): (self.consumed, consumed) for number in range(self._partitions)}
            },
            tables={},
            outputs={self.output: outputs},
            watermark_us=None,
            next_watermark_us=None,
            seen_us={},
            rows_in=len(changes),
            rows_out=len(changes) + len(raw),
            late=0,
            dead=0,
            fingerprint=f"f{self.generation}",
            generation_offset=self._at,
        )
        key, value = encode(record)
        self._producer.produce(self.flow.progress_topic, key=key, value=value)
        self._producer.commit_transaction(30)
        # Other threads read the state of a batch as soon as it is counted.
        self.derived.fold(changes, self._names)
        self.batches, self.consumed = number + 1, consumed
        return number

    def restart(self) -> None:
        """Open the flow with another driver, which continues the generation."""
        wait_until_decided(self.cluster, self.flow.progress_topic)
        progress = current(self.cluster, self.flow.progress_topic)
        assert progress is not None
        record = Owner(
            app="shop",
            flow=self.flow.name,
            generation=self.generation,
            driver=Driver("d", "host", 1, int(time.time() * 1_000)),
            generation_offset=progress.generation_offset,
            batch_offset=progress.last_offset,
        )
        self._producer = self.transactional()
        self._producer.begin_transaction()
        key, value = encode(record)
        self._producer.produce(self.flow.progress_topic, key=key, value=value)
        self._producer.commit_transaction(30)

    def settle(self, changes: Sequence[Change]) -> bool:
        """Return whether a batch without a response is in the log. Raises while no broker responds."""
        self._producer.purge()
        # A new producer ends a transaction that was in flight.
        self._producer = self.transactional()
        progress = current(self.cluster, self.flow.progress_topic)
        if progress is None or progress.last is None or progress.last.batch < self.batches:
            return False
        self.batches, self.consumed = self.batches + 1, self.consumed + len(changes)
        self.derived.fold(changes, self._names)
        return True

    def abort(self, changes: Sequence[Change]) -> None:
        """Write rows and a progress record in a transaction that is aborted."""
        self._producer.begin_transaction()
        self.rows([(key_bytes(product), value_bytes(row)) for product, row in changes])
        self._producer.produce(self.flow.progress_topic, key=b"x", value=b"not JSON")
        self._producer.flush(30)
        self._producer.abort_transaction(30)

    def stall(self, changes: Sequence[Change]) -> None:
        """Leave a batch open: its rows are in the log, but it is never committed."""
        self._producer.begin_transaction()
        self.rows([(key_bytes(product), value_bytes(row)) for product, row in changes])

    def rows(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> dict[str, tuple[int, int]]:
        """Write rows in the open transaction, and return their offsets."""
        ranges: dict[str, tuple[int, int]] = {}

        def on_delivery(error: object, message: Message) -> None:
            assert error is None, error
            offset, partition = message.offset() or 0, str(message.partition())
            begin, end = ranges.get(partition, (offset, offset))
            ranges[partition] = (min(begin, offset), max(end, offset + 1))

        for key, value in records:
            partition = zlib.crc32(key or b"") % self._partitions
            self._producer.produce(
                self.output, key=key, value=value, partition=partition, on_delivery=on_delivery
            )
        self._producer.flush(30)
        return ranges


def _derive(frame: Callable[..., Any]) -> Callable[..., Any]:
    return frame
