"""JSON beside Avro for a topic that is hot: how large values are, and what it costs to read them in a flow."""

from __future__ import annotations

import time

import msgspec

from bench.decoding import RESULT, Decoded, avro_topic, json_topic
from bench.stand import Stand
from headrace.ops.log_dirs import sizes_of
from tools.jars import jar

__all__ = ["avro_conf", "measure", "note_decoded"]

_TIMEOUT_S = 900.0
_LOOK_S = 0.05
_STRICT = "JSON, read and checked as flows do it"


def avro_conf() -> dict[str, str]:
    """Spark's configuration with its Avro functions, which PySpark does not bring."""
    return {"spark.jars": str(jar("spark-avro_2.13"))}


def measure(stand: Stand) -> None:
    topic = stand.filled("orders-to-decode", stand.plan.format_events)
    task = stand.task("decode", "", "decoded", topic, spark={"conf": avro_conf()})
    result = task.data / RESULT
    deadline = time.monotonic() + _TIMEOUT_S
    with stand.host.run(task) as running:
        while not result.is_file():
            running.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"values were not decoded within {_TIMEOUT_S:.0f} s")
            time.sleep(_LOOK_S)
    note_decoded(stand, msgspec.json.decode(result.read_bytes(), type=Decoded), _stored_mb(stand, topic))


def note_decoded(stand: Stand, found: Decoded, stored_mb: dict[str, float]) -> None:
    million = 1e6 / found.values / 2**20
    note = stand.measured.both
    sizes = found.json_bytes * million, found.avro_bytes * million
    note("a million orders as JSON", "as Avro", *sizes, "MB", None)
    share = 1e6 / found.values
    stored = stored_mb["json"] * share, stored_mb["avro"] * share
    note("a million orders as JSON in the log, LZ4", "as Avro in the log, LZ4", *stored, "MB", None)
    spent = found.cpu_s
    for what, peer, base in (
        ("from_avro", "Avro by from_avro", "read Avro"),
        ("from_json", "JSON by from_json, which trusts it", "read JSON"),
    ):
        for ours, theirs, alone, theirs_alone in zip(
            spent["strict"], spent[what], spent["read JSON"], spent[base], strict=True
        ):
            note(f"CPU to read a million orders from the log: {_STRICT}", peer, ours, theirs, "CPU s", None)
            # What decoding adds; where it is lost in the noise, a little is as good as nothing.
            net = max(0.01, ours - alone), max(0.01, theirs - theirs_alone)
            note(f"CPU to decode a million orders: {_STRICT}", peer, *net, "CPU s", None)


def _stored_mb(stand: Stand, topic: str) -> dict[str, float]:
    names = {"json": json_topic(topic), "avro": avro_topic(topic)}
    places = {what: [(name, at) for at in stand.cluster.ends(name)] for what, name in names.items()}
    sizes = sizes_of(stand.cluster, [one for listed in places.values() for one in listed])
    assert sizes is not None, "the embedded broker tells"
    return {what: sum(sizes.bytes[one] for one in listed) / 2**20 for what, listed in places.items()}
