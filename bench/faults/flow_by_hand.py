"""A flow without Spark: transactions that hold rows and a progress record, written by hand, and what they come to."""

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
from headrace.client.progress_log import current, wait_until_decided
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Driver, Generation, Input, Owner, encode
from headrace.model.schema import Schema, schema_of
from headrace.model.schema_json import fields_to_json
from headrace.model.view import View

__all__ = ["Change", "Derived", "FlowByHand", "Sale", "view_of"]

Change = tuple[str, dict[str, Any] | None]
"""A product, and its row or that it is gone."""


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
    """What the committed transactions of a generation come to, kept beside them."""

    rows: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    states: list[dict[str, tuple[Any, ...]]] = field(default_factory=lambda: [{}])
    """After each batch; the first is that before any."""

    def fold(self, changes: Sequence[Change], names: Sequence[str]) -> None:
        for product, row in changes:
            if row is None:
                self.rows.pop(product, None)
            else:
                self.rows[product] = tuple(row.get(name) for name in names)
        self.states.append(dict(self.rows))


def view_of(name: str) -> tuple[App, Flow, View]:
    """An app with one flow and the view of what it writes, which has this name."""
    app = App("shop")
    source = app.topic(f"{name}-in", Sale, key="product")
    output = app.topic(f"{name}-out", key="product")
    flow = app.flow(reads=[source], writes=output, name=f"{name}-flow")(_derive)
    return app, flow, app.view(name, output)


class FlowByHand:
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
        """Where the rows of the last batch end, by partition."""
        self._at = 0
        cluster.ensure_topic(self.flow.progress_topic, 1, {"retention.ms": "-1"})
        self._producer = self.transactional()

    def transactional(self) -> Producer:
        """Fences the one before."""
        producer = self.cluster.producer(
            {"transactional.id": self.flow.name, "linger.ms": 0, "retry.backoff.ms": 10}
        )
        producer.init_transactions(30)
        return producer

    def begin(
        self, schema: type = Sale, *, configs: Mapping[str, str] | None = None, inputs: str = ""
    ) -> Generation:
        """A new generation: its own output topic, everything from the beginning."""
        self.generation += 1
        self.output = self.topic.name if self.generation == 1 else f"{self.topic.name}.g{self.generation}"
        info = self.cluster.ensure_topic(self.output, self._partitions, configs)
        self.batches, self.consumed, self.derived, self.ends = 0, 0, Derived(), {}
        told: Schema = schema_of(schema)
        self._names = told.names
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
            schema=fields_to_json(told.fields),
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
        """One committed batch; ``raw`` are records that no oracle can read, ``consumed`` how far its input was read."""
        number = self.batches
        if consumed is None:
            consumed = self.consumed + len(changes)
        self._producer.begin_transaction()
        records = [(key_bytes(product), value_bytes(row)) for product, row in changes]
        outputs = self.rows([*records, *raw])
        if number % 2 == 0:
            # As flows say it: from where the last one ended, whatever lies in between, in all partitions.
            ends = self.cluster.ends(self.output, committed=False)
            outputs = {str(one): (self.ends.get(one, 0), end) for one, end in ends.items()}
        self.ends |= {int(one): end for one, (_, end) in outputs.items()}
        record = Batch(
            flow=self.flow.name,
            generation=self.generation,
            batch=number,
            inputs={self._inputs: {str(one): (self.consumed, consumed) for one in range(self._partitions)}},
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
        self.batches, self.consumed = number + 1, consumed
        self.derived.fold(changes, self._names)
        return number

    def restart(self) -> None:
        """Another driver opens the flow, and goes on with its generation."""
        wait_until_decided(self.cluster, self.flow.progress_topic)
        found = current(self.cluster, self.flow.progress_topic)
        assert found is not None
        record = Owner(
            app="shop",
            flow=self.flow.name,
            generation=self.generation,
            driver=Driver("d", "host", 1, int(time.time() * 1_000)),
            generation_offset=found.generation_offset,
            batch_offset=found.last_offset,
        )
        self._producer = self.transactional()
        self._producer.begin_transaction()
        key, value = encode(record)
        self._producer.produce(self.flow.progress_topic, key=key, value=value)
        self._producer.commit_transaction(30)

    def settle(self, changes: Sequence[Change]) -> bool:
        """After a batch whose end was not heard: whether it is in the log. Raises while there is none to ask."""
        self._producer.purge()
        # Whatever of it was under way has ended, one way or the other, once there is another producer.
        self._producer = self.transactional()
        told = current(self.cluster, self.flow.progress_topic)
        if told is None or told.last is None or told.last.batch < self.batches:
            return False
        self.batches, self.consumed = self.batches + 1, self.consumed + len(changes)
        self.derived.fold(changes, self._names)
        return True

    def abort(self, changes: Sequence[Change]) -> None:
        """Rows and a record that nobody may see."""
        self._producer.begin_transaction()
        self.rows([(key_bytes(product), value_bytes(row)) for product, row in changes])
        self._producer.produce(self.flow.progress_topic, key=b"x", value=b"not JSON")
        self._producer.flush(30)
        self._producer.abort_transaction(30)

    def stall(self, changes: Sequence[Change]) -> None:
        """In the middle of a batch: its rows are in the log, and its end does not come."""
        self._producer.begin_transaction()
        self.rows([(key_bytes(product), value_bytes(row)) for product, row in changes])

    def rows(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> dict[str, tuple[int, int]]:
        """Within the open transaction; the offsets that they got."""
        places: dict[str, tuple[int, int]] = {}

        def sent(error: object, message: Message) -> None:
            assert error is None, error
            offset, partition = message.offset() or 0, str(message.partition())
            begin, end = places.get(partition, (offset, offset))
            places[partition] = (min(begin, offset), max(end, offset + 1))

        for key, value in records:
            partition = zlib.crc32(key or b"") % self._partitions
            self._producer.produce(self.output, key=key, value=value, partition=partition, on_delivery=sent)
        self._producer.flush(30)
        return places


def _derive(frame: Callable[..., Any]) -> Callable[..., Any]:
    return frame
