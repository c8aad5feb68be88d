"""A real-time flow without Spark: writes rows with their sources at least once, and progress records."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping

from faults.views.scripted_flow import Change, Sale, key_bytes, value_bytes, view_of
from headrace.client.cluster import Cluster
from headrace.model.progress import SOURCE_HEADER, Batch, Generation, Input, encode
from headrace.model.schema import fields_to_json, schema_of

__all__ = ["PARTITIONS", "RowWithSource", "ScriptedRealtimeFlow", "output_of"]

PARTITIONS = 2
RowWithSource = tuple[int, int, Change]
"""Partition and offset of its source record, and its value."""


def output_of(change: Change) -> int:
    return zlib.crc32(change[0].encode()) % PARTITIONS


class ScriptedRealtimeFlow:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.app, self.flow, self.view = view_of(name)
        self.progress = self.flow.progress_topic
        self.generation = 0
        self.output = self.flow.writes.name
        self._batch = 0
        self._generation_offset = 0
        self._producer = cluster.producer({"linger.ms": 0, "enable.idempotence": True})
        cluster.ensure_topic(self.progress, 1, {"retention.ms": "-1"})

    def begin(self, configs: Mapping[str, str] | None = None) -> Generation:
        self.generation += 1
        self._batch = 0
        name = self.flow.writes.name
        self.output = name if self.generation == 1 else f"{name}.g{self.generation}"
        info = self.cluster.ensure_topic(self.output, PARTITIONS, configs)
        starts = {str(value): end for value, end in self.cluster.ends(self.output).items()}
        source = self.flow.reads[0].name
        record = Generation(
            app="shop",
            flow=self.flow.name,
            generation=self.generation,
            fingerprint=f"f{self.generation}",
            inputs=[Input(source, source, f"id-of-{source}", "events")],
            output=self.output,
            output_id=info.id,
            output_starts=starts,
            key=["product"],
            schema=fields_to_json(schema_of(Sale).fields),
            checkpoint="c",
            started_ms=int(time.time() * 1_000),
            latency="realtime",
        )
        self._generation_offset = self.cluster.ends(self.progress)[0]
        self._send(self.progress, *encode(record))
        return record

    def rows(self, rows: Iterable[RowWithSource]) -> None:
        for partition, offset, change in rows:
            headers: list[tuple[str, str | bytes | None]] = [
                (SOURCE_HEADER, f"{partition}/{offset}".encode())
            ]
            key, value = key_bytes(change[0]), value_bytes(change[1])
            self._producer.produce(
                self.output, key=key, value=value, partition=output_of(change), headers=headers
            )
        assert self._producer.flush(30) == 0

    def write_progress(self, ends: Mapping[int, int]) -> int:
        """Write a progress record: the input is consumed up to these offsets."""
        outputs = {str(value): (0, end) for value, end in self.cluster.ends(self.output).items()}
        record = Batch(
            flow=self.flow.name,
            generation=self.generation,
            batch=self._batch,
            inputs={self.flow.reads[0].name: {str(value): (0, end) for value, end in ends.items()}},
            tables={},
            outputs={self.output: outputs},
            watermark_us=None,
            next_watermark_us=None,
            seen_us={},
            rows_in=0,
            rows_out=0,
            late=0,
            dead=0,
            fingerprint=f"f{self.generation}",
            generation_offset=self._generation_offset,
        )
        self._send(self.progress, *encode(record))
        self._batch += 1
        return record.batch

    def _send(self, topic: str, key: bytes, value: bytes) -> None:
        self._producer.produce(topic, key=key, value=value)
        assert self._producer.flush(30) == 0
