"""How many records a batch has read of each input, and which of them its function did not see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, SparkSession

from headrace.client.cluster import Cluster
from headrace.flow.batch import Counts
from headrace.flow.decoding import Decoder
from headrace.flow.inputs import history, tallied
from headrace.flow.left_out import LeftOut, read_left_out
from headrace.model.progress import Ranges

__all__ = ["InputCounter"]


class InputCounter:
    """``decoders`` and ``logs``, which are names in the log, are by input of events, as the app names it; ``watermark``
    decides what is late in the batch that runs.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        decoders: Mapping[str, Decoder],
        logs: Mapping[str, str],
        watermark: Column,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._decoders = decoders
        self._logs = logs
        self._watermark = watermark

    def counts(self, tallies: Mapping[str, Mapping[str, Any]], inputs: Ranges) -> dict[str, Counts]:
        """``tallies`` is what the plan has counted. Where that cannot be right, the input is read for itself."""
        found = {}
        for topic in self._decoders:
            offsets = sum(high - low for low, high in self._ranges(topic, inputs).values())
            right = Counts.if_right(tallies[topic], offsets) if offsets else Counts()
            found[topic] = self._count(topic, inputs) if right is None else right
        return found

    def count(self, inputs: Ranges) -> dict[str, Counts]:
        """Read for itself."""
        return {topic: self._count(topic, inputs) for topic in self._decoders}

    def left_out(self, counts: Mapping[str, Counts], inputs: Ranges) -> Iterator[LeftOut]:
        """The late and dead records, of inputs that have some by these counts."""
        for topic, decoder in self._decoders.items():
            if counts[topic].left_out:
                yield from read_left_out(
                    self._spark,
                    self._cluster,
                    decoder,
                    self._logs[topic],
                    self._ranges(topic, inputs),
                    self._watermark,
                    counts[topic].average_bytes,
                )

    def _count(self, topic: str, inputs: Ranges) -> Counts:
        ranges = self._ranges(topic, inputs)
        if all(low >= high for low, high in ranges.values()):
            return Counts()
        records = history(self._spark, self._cluster, self._logs[topic], ranges)
        return Counts.of(tallied(self._decoders[topic].decode(records), self._watermark))

    def _ranges(self, topic: str, inputs: Ranges) -> dict[str, tuple[int, int]]:
        return inputs.get(self._logs[topic], {})
