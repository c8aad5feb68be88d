"""JSON and Avro for a hot topic: the size of values, and the cost to decode them in a flow."""

from __future__ import annotations

import time

import msgspec

from bench.flow.context import FlowContext
from bench.flow.decoders import RESULT, Decoded, avro_topic, json_topic
from headrace.ops.outlook import sizes_of
from tools.jars import jar

__all__ = ["avro_conf", "measure", "note_figures"]

_TIMEOUT_S = 900.0
_POLL_S = 0.05
_STRICT = "JSON, read and checked as flows do it"


def avro_conf() -> dict[str, str]:
    """Return Spark's configuration with its Avro functions, which PySpark does not include."""
    return {"spark.jars": str(jar("spark-avro_2.13"))}


def measure(context: FlowContext) -> None:
    topic = context.orders_topic("orders-to-decode", context.plan.format_events)
    task = context.task("decode", "", "decoded", topic, spark={"conf": avro_conf()})
    result = task.data / RESULT
    deadline = time.monotonic() + _TIMEOUT_S
    with context.host.run(task) as running:
        while not result.is_file():
            running.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"values were not decoded within {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
    note_figures(context, msgspec.json.decode(result.read_bytes(), type=Decoded), _stored_mb(context, topic))


def note_figures(context: FlowContext, decoded: Decoded, stored_mb: dict[str, float]) -> None:
    million = 1e6 / decoded.values / 2**20
    note = context.figures.add_comparison
    sizes = decoded.json_bytes * million, decoded.avro_bytes * million
    note("a million orders as JSON", "as Avro", *sizes, "MB", None)
    share = 1e6 / decoded.values
    stored = stored_mb["json"] * share, stored_mb["avro"] * share
    note("a million orders as JSON in the log, LZ4", "as Avro in the log, LZ4", *stored, "MB", None)
    cpu_s = decoded.cpu_s
    for plan, peer, read_plan in (
        ("from_avro", "Avro by from_avro", "read Avro"),
        ("from_json", "JSON by from_json, which does not check it", "read JSON"),
    ):
        for ours, theirs, our_read, their_read in zip(
            cpu_s["strict"], cpu_s[plan], cpu_s["read JSON"], cpu_s[read_plan], strict=True
        ):
            note(f"CPU to read a million orders from the log: {_STRICT}", peer, ours, theirs, "CPU s", None)
            # The CPU time that decoding adds. A difference below the noise counts as 0.01.
            net = max(0.01, ours - our_read), max(0.01, theirs - their_read)
            note(f"CPU to decode a million orders: {_STRICT}", peer, *net, "CPU s", None)


def _stored_mb(context: FlowContext, topic: str) -> dict[str, float]:
    names = {"json": json_topic(topic), "avro": avro_topic(topic)}
    partitions_of = {
        encoding: [(name, number) for number in context.cluster.ends(name)]
        for encoding, name in names.items()
    }
    sizes = sizes_of(context.cluster, [each for partitions in partitions_of.values() for each in partitions])
    assert sizes is not None, "the embedded broker reports the sizes"
    return {
        encoding: sum(sizes.bytes[each] for each in partitions) / 2**20
        for encoding, partitions in partitions_of.items()
    }
