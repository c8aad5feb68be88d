"""Makes the archive of Spark's classes: a run of Spark that does once what flows do, and is archived when it ends.

    python -m headrace.flow.training

Takes some 20 seconds, once for an installation. Two at once do not disturb each other: each writes a file of its own,
and the last one to be renamed counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.flow import session
from headrace.flow.archive import archive_of, archives_dir, can_archive, prune
from headrace.flow.jars import Say
from headrace.flow.start_errors import SparkNotStarted
from headrace.readable import readable
from headrace.settings import Settings, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "train"]

_BROKER_S_MAX = 30.0
_DUMP_S_MAX = 300.0
_ROWS = 500


def train(settings: Settings, *, say: Say) -> Path | None:
    """The archive's path; made if it is not there. None where this Java can have none."""
    launch = session.launch_for(settings, say=say)
    target = archive_of(launch)
    if target.is_file():
        return target
    if not can_archive(launch):
        return None
    say("Spark: reading its classes in advance, once for this installation; later starts take half as long")
    began = time.monotonic()
    archives_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=archives_dir()) as name:
        work = Path(name)
        made = work / "classes.jsa"
        spark = SparkSettings(
            master="local[2]",
            jars=settings.spark.jars,
            java_options=f"-XX:ArchiveClassesAtExit={made} -XX:TieredStopAtLevel=1 -Xlog:cds=off -Xlog:cds+dynamic=off",
        )
        running = session.start(Settings(data=work, spark=spark), "headrace-training", say=say)
        try:
            with _broker(work) as address:
                _work(running, address, work)
        finally:
            # Writing 150 MB of classes is part of its end.
            session.stop(running, patience_s=_DUMP_S_MAX)
        if not made.is_file():
            raise SparkNotStarted("the JVM made no archive of Spark's classes", hint="Spark works without it")
        made.replace(target)
    say(
        f"Spark: {target.stat().st_size / 1e6:.0f} MB of classes, ready after {time.monotonic() - began:.0f} s"
    )
    prune()
    return target


@contextlib.contextmanager
def _broker(work: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "headrace.cli", "broker", "-l", "127.0.0.1:0", "-d", str(work / "log")]
    process = subprocess.Popen(  # noqa: S603  our own command
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline() if readable(process.stdout.fileno(), _BROKER_S_MAX) else ""
        _, found, rest = line.partition(" ready on ")
        if not found:
            raise SparkNotStarted("the broker for the training run did not start", detail=line)
        yield rest.split()[0]
    finally:
        process.terminate()
        process.communicate()


def _work(spark: SparkSession, address: str, work: Path) -> None:
    """What flows do: JSON from topics, windows and a join over them, rows over to Python; once as a batch as well."""
    from pyspark.sql import functions as fn

    def written(topic: str) -> None:
        rows = spark.range(_ROWS).select(
            fn.col("id").cast("string").alias("key"),
            fn.to_json(
                fn.struct("id", (fn.col("id") % 7).cast("string").alias("product"), fn.now().alias("at"))
            ).alias("value"),
        )
        rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()

    def parsed(reader: Any, topic: str) -> Any:
        rows = reader.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        value = fn.from_json(fn.col("value").cast("string"), "id bigint, product string, at timestamp")
        loaded = rows.option("startingOffsets", "earliest").option("includeHeaders", "true").load()
        return loaded.select(value.alias("row"), "partition", "offset", "headers").select("row.*", "offset")

    for topic in ("orders", "products"):
        written(topic)
    batch = parsed(spark.read, "orders").join(parsed(spark.read, "products"), "id", "left")
    batch.groupBy("id").count().orderBy("id").toArrow()
    stream = parsed(spark.readStream, "orders").withWatermark("at", "1 second")
    counts = stream.groupBy(fn.window("at", "1 second"), "product").agg(fn.count("*"), fn.sum("id"))
    joined = stream.join(parsed(spark.read, "products"), "id", "left")
    for number, flow in enumerate((counts, joined)):
        query = (
            flow.writeStream.outputMode("update" if flow is counts else "append")
            .foreachBatch(lambda rows, _: rows.toArrow())
            .option("checkpointLocation", str(work / f"checkpoint-{number}"))
            .start()
        )
        query.processAllAvailable()
        query.stop()


def main() -> int:
    try:
        train(Settings(), say=lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # A JVM's and a client's threads are gone by now; what is left of Python need not be taken apart.
    code = main()
    sys.stderr.flush()
    os._exit(code)
