"""kill -9 while segments move to a bucket, with the command that users run, a real S3 server and stock clients."""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults.servers.broker_process import BrokerProcess
from faults.servers.fork_server import ROOT
from faults.wait import until
from tests.support.s3 import CREDENTIALS, S3Server

TOPIC = "orders"
ENDPOINT = "headrace.archive.s3.endpoint"
CONFIGS = {"internal.segment.bytes": "1000", "retention.bytes": "1500", "headrace.archive.enable": "true"}


def documented_options(bucket: str, endpoint: str) -> list[str]:
    """Return the options that the documentation page on archives shows, with the test's bucket and endpoint."""
    page = (ROOT / "docs" / "how-to" / "archive.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ headrace broker --data log (.*s3://.*)$", page, re.MULTILINE)
    options = shlex.split(line)
    assert [option.partition("=")[0] for option in options[1::2]] == [
        "headrace.archive.dir",
        ENDPOINT,
    ]
    return [*options[:1], f"headrace.archive.dir=s3://{bucket}/shop", options[2], f"{ENDPOINT}={endpoint}"]


def create(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, config=CONFIGS)])[TOPIC].result(120)


def send(broker: BrokerProcess, values: list[bytes]) -> None:
    """Send records, each in its own batch, and return when all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1})
    errors: list[object] = []
    for value in values:
        producer.produce(
            TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(120) == 0
    assert errors == []


def read_all(broker: BrokerProcess, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes] = []
        while len(values) < count:
            message = consumer.poll(120)
            assert message is not None, f"{len(values)} of {count} records within two minutes"
            assert message.error() is None, message.error()
            assert message.offset() == len(values)
            values.append(message.value())
        return values
    finally:
        consumer.close()


def archived_bases(data: Path) -> list[int]:
    """Return the base offsets in the file ``archived``, parsed as the documentation of the format describes it."""
    (path,) = data.glob("topics/*/0/archived")
    raw = path.read_bytes()
    magic, count = struct.unpack_from(">8sQ", raw)
    assert magic == b"HRARCH01"
    return [struct.unpack_from(">q", raw, 16 + 32 * number)[0] for number in range(count)]


def is_archiving_done(home: Path) -> bool:
    """Whether no segment is being moved or must be moved. None must be moved if the log without its oldest segment is
    smaller than its retention.
    """
    try:
        segment_bytes = [path.stat().st_size for path in sorted(home.glob("*.log"))]
    except FileNotFoundError:
        return False
    return sum(segment_bytes[1:]) < int(CONFIGS["retention.bytes"]) and not (home / "archiving").exists()


def test_a_broker_killed_while_it_archives_loses_no_record_and_leaves_no_file(
    tmp_path: Path, s3: S3Server
) -> None:
    bucket = s3.fresh_bucket()
    options = documented_options(bucket, s3.endpoint)
    with BrokerProcess(tmp_path, options=options, retention_check_ms=50) as broker:
        broker.start()
        create(broker)
        sent: list[bytes] = []
        # Kill before the upload of a log file, between a log file and its index, and after one whole segment.
        for uploads_before_kill in (0, 1, 2):
            struck = s3.injected_faults
            with s3.rule("hold", "PUT", uploads_before_kill):
                values = [b"%d-%0100d" % (uploads_before_kill, number) for number in range(40)]
                send(broker, values)
                sent += values
                until(lambda struck=struck: s3.injected_faults > struck, "the S3 server delays an upload")  # type: ignore[misc]
                broker.kill()
            broker.start()
            assert read_all(broker, len(sent)) == sent
        home = next((tmp_path / "data" / "topics").glob("*/0"))
        until(lambda: is_archiving_done(home), "all moves")
        assert broker.stop() == 0
        archived_names = {key.split("/")[4] for key in s3.objects(bucket)}
        bases = archived_bases(tmp_path / "data")
        assert len(bases) > 5
        assert archived_names == {f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index")}
        log_text = broker.log.read_text()
        assert not broker.unexpected_exceptions()
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in log_text
        assert CREDENTIALS["AWS_ACCESS_KEY_ID"] not in log_text
