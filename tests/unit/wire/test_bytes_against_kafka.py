"""Messages have Kafka's bytes, compared with those of the Java client and of kafka-python.

``fixtures/written_by_kafka.jsonl`` has bytes that kafka-clients 4.3.0 wrote, with its own JSON of the same message. It
has every message in its first and last version, and in the versions before and after the first flexible one.
"""

from __future__ import annotations

import base64
import json
import pkgutil
import warnings
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from faults.protocol.message_samples import NAMES, all_versions, sample
from headrace.wire import decode, encode, messages
from headrace.wire.notation import Field

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "fixtures" / "written_by_kafka.jsonl")
    .read_text("utf-8")
    .splitlines()
]


def json_view(message: Any, version: int) -> dict[str, Any]:
    view = {}
    for field in message.struct_.fields:
        value = getattr(message, field.name)
        default = type(message)()
        if version not in field.versions or field.type == "records":
            continue
        if field.tag is not None and value == getattr(default, field.name):
            continue
        first, *rest = field.name.split("_")
        view[first + "".join(word.capitalize() for word in rest)] = json_value(field, value, version)
    return view


def json_value(field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [json_value(field, element, version) for element in value]
    if field.struct is not None:
        return json_view(value, version)
    if field.type == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return base64.b64encode(value).decode() if field.type == "bytes" else value


def without_records(view: Any) -> Any:
    """Remove the content of records, which the Java client's JSON does not have."""
    if isinstance(view, list):
        return [without_records(element) for element in view]
    if isinstance(view, dict):
        return {key: without_records(value) for key, value in view.items() if key != "records"}
    return view


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['message']}-{row['version']}" for row in ROWS])
def test_messages_of_the_java_client_are_decoded_and_encoded_to_the_same_bytes(row: dict[str, Any]) -> None:
    written = bytes.fromhex(row["hex"])
    message = decode(getattr(messages, row["message"]), row["version"], written)
    assert json_view(message, row["version"]) == without_records(row["fields"])
    assert encode(message, row["version"]) == written


def test_the_java_client_wrote_every_message() -> None:
    assert {row["message"] for row in ROWS} == set(NAMES)


def kafka_python_classes() -> dict[str, Any]:
    found = {}
    with warnings.catch_warnings():
        # kafka-python reads its schemas with a function that Python 3.11 deprecated. Python 3.13 reverted that.
        warnings.simplefilter("ignore", DeprecationWarning)
        package = import_module("kafka.protocol")
        for module in pkgutil.walk_packages(package.__path__, "kafka.protocol."):
            if ".old" in module.name or ".schemas" in module.name or "generate" in module.name:
                continue
            for name, value in vars(import_module(module.name)).items():
                if name in NAMES and hasattr(value, "min_version"):
                    found[name] = value
    return found


# kafka-python represents some messages differently (sets for bit fields, None for structs of defaults, a version
# before the message), so they cannot be compared field by field. The Java client's bytes cover them.
NOT_COMPARABLE = {
    "ApiVersionsResponse",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "DescribeClusterResponse",
    "DescribeGroupsResponse",
    "FetchRequest",
    "FetchResponse",
    "MetadataResponse",
    "ProduceResponse",
}
KAFKA_PYTHON = kafka_python_classes()


def plain(message: Any, version: int) -> dict[str, Any]:
    """Fields and values of the version in kafka-python's form: structs are dicts and ids are UUIDs."""

    def convert(field: Field, value: Any) -> Any:
        if isinstance(value, list):
            return [convert(field, element) for element in value]
        if field.type == "uuid":
            return UUID(bytes=value) if any(value) else None
        return plain(value, version) if hasattr(value, "struct_") else value

    return {
        field.name: convert(field, getattr(message, field.name))
        for field in message.struct_.fields
        if version in field.versions
    }


def test_kafka_python_knows_most_messages() -> None:
    assert len(KAFKA_PYTHON) > 60


@pytest.mark.parametrize("name", sorted(KAFKA_PYTHON.keys() - NOT_COMPARABLE))
def test_kafka_python_reads_and_writes_the_same(name: str) -> None:
    peer = KAFKA_PYTHON[name]
    random = Random(name)
    compared = 0
    for version in all_versions(name):
        if not peer.min_version <= version <= peer.max_version:
            continue
        for _ in range(10):
            message = sample(random, name, version)
            written = encode(message, version)
            read = peer.decode(written, version=version)
            fields = plain(message, version)
            assert read.to_dict(json=False) == fields
            again = peer[version](**{field: getattr(read, field) for field in fields})
            assert bytes(again.encode()) == written
            compared += 1
    assert compared
