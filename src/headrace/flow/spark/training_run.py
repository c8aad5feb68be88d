"""Creates the archive of Spark's classes with a training run: Spark executes the typical operations of flows once.

    python -m headrace.flow.spark.training_run

It takes about 20 seconds, once per installation. The archive makes later starts of Spark faster. Concurrent runs do not
interfere: each writes its own file, and the last rename wins.
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
from headrace.files import readable
from headrace.flow.spark import session
from headrace.flow.spark.class_archive import archive_of, archives_dir, can_archive, prune
from headrace.flow.spark.errors import SparkNotStarted
from headrace.flow.spark.jars import Say
from headrace.settings import Settings, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "train"]

_BROKER_S_MAX = 30.0
_DUMP_S_MAX = 300.0
_ROWS = 500


def train(settings: Settings, *, say: Say) -> Path | None:
    """Create the archive if it does not exist, and return its path; None if this Java does not support archives."""
    launch = session.launch_for(settings, say=say)
    target = archive_of(launch)
    if target.is_file():
        return target
    if not can_archive(launch):
        return None
    say("Spark: archiving its classes (once per installation); later starts take half as long")
    began = time.monotonic()
    archives_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=archives_dir()) as name:
        work = Path(name)
        output = work / "classes.jsa"
        spark = SparkSettings(
            master="local[2]",
            jars=settings.spark.jars,
            java_options=f"-XX:ArchiveClassesAtExit={output} -XX:TieredStopAtLevel=1"
            " -Xlog:cds=off -Xlog:cds+dynamic=off",
        )
        spark_session = session.start(Settings(data=work, spark=spark), "headrace-training", say=say)
        try:
            with _broker(work) as address:
                _work(spark_session, address, work)
        finally:
            # The JVM writes about 150 MB of classes when it exits.
            session.stop(spark_session, patience_s=_DUMP_S_MAX)
        if not output.is_file():
            raise SparkNotStarted(
                "the JVM wrote no archive of Spark's classes", hint="Spark works without the archive"
            )
        output.replace(target)
    say(
        f"Spark: archived {target.stat().st_size / 1e6:.0f} MB of classes in {time.monotonic() - began:.0f} s"
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
        _, is_ready, rest = line.partition(" ready on ")
        if not is_ready:
            raise SparkNotStarted(
                "the broker for the run that records Spark's class archive did not start", detail=line
            )
        yield rest.split()[0]
    finally:
        process.terminate()
        process.communicate()


def _work(spark: SparkSession, address: str, work: Path) -> None:
    """Execute the operations of flows, as a batch and as streams: read JSON from topics, aggregate, join, collect."""
    from pyspark.sql import functions as fn

    def write_topic(topic: str) -> None:
        rows = spark.range(_ROWS).select(
            fn.col("id").cast("string").alias("key"),
            fn.to_json(
                fn.struct("id", (fn.col("id") % 7).cast("string").alias("product"), fn.now().alias("at"))
            ).alias("value"),
        )
        rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()

    def read_rows(reader: Any, topic: str) -> Any:
        rows = reader.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        value = fn.from_json(fn.col("value").cast("string"), "id bigint, product string, at timestamp")
        loaded = rows.option("startingOffsets", "earliest").option("includeHeaders", "true").load()
        return loaded.select(value.alias("row"), "partition", "offset", "headers").select("row.*", "offset")

    for topic in ("orders", "products"):
        write_topic(topic)
    batch = read_rows(spark.read, "orders").join(read_rows(spark.read, "products"), "id", "left")
    batch.groupBy("id").count().orderBy("id").toArrow()
    stream = read_rows(spark.readStream, "orders").withWatermark("at", "1 second")
    counts = stream.groupBy(fn.window("at", "1 second"), "product").agg(fn.count("*"), fn.sum("id"))
    joined = stream.join(read_rows(spark.read, "products"), "id", "left")
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
    # Exit without Python's cleanup: the threads of the JVM and the client have already ended.
    code = main()
    sys.stderr.flush()
    os._exit(code)
