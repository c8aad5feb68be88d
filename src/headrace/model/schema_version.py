"""Recorded schemas: the versions that the schema of a topic has had, in the log and in a file.

In the log, topic ``headrace.schemas.<app>`` has one record for each version of each topic that the app declares and no
flow writes. Its key is ``<topic>/<version>/<digest>``. Two processes that start together may record two schemas with
the same number; the digest keeps both records through compaction. A version is never removed: the log may still have
records of it.

In a file, which is for version control, the same versions are in a JSON document:

    {"app": "shop", "schemas": [{"topic": "orders", "version": 1, "name": "Order", "fields": [...], ...}]}
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.model.code_digest import upcast_digest
from headrace.model.declarations import Topic
from headrace.model.errors import SchemaError, ValueDoesNotFit
from headrace.model.schema import Schema, fields_from_json, fields_to_json

__all__ = [
    "HISTORY_CODE",
    "SchemaFile",
    "SchemaVersion",
    "UnreadableSchemas",
    "declared_version",
    "next_version",
    "used_versions",
    "versions_of_id",
]

HISTORY_CODE = "HR-APP-HISTORY"
"""The code of a mistake: older records do not fit the declared schema."""


class UnreadableSchemas(HeadraceError):
    code = "HR-SCHEMA-RECORD"


class SchemaVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    version: int
    name: str
    """The name of the dataclass."""
    fields: list[dict[str, Any]]
    """The fields, as ``headrace.model.schema`` writes them."""
    key: list[str] = []
    kind: str = "events"
    upcast: str = ""
    """The digest of the topic's upcasters when the version was last recorded."""
    topic_id: str = ""
    """The id of the topic in the log. A topic that was deleted and created again has no records of earlier versions."""
    ends: dict[str, int] = {}
    """The end of each partition when the version was recorded. Records of this version are at or after it."""
    recorded_ms: int = 0

    @property
    def schema(self) -> Schema:
        try:
            return Schema(self.name, fields_from_json(self.fields))
        except (KeyError, TypeError, ValueError, AttributeError, SchemaError, ValueDoesNotFit) as error:
            raise UnreadableSchemas(
                f"version {self.version} of the schema of topic {self.topic} is not readable: {error}",
                hint="run the release that recorded it, or a later release",
            ) from error

    @property
    def log_key(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(self.fields)).hexdigest()[:8]
        return f"{self.topic}/{self.version}/{digest}"

    @property
    def label(self) -> str:
        """For messages: ``version 2 of 2026-11-19``."""
        if not self.recorded_ms:
            return f"version {self.version}"
        return f"version {self.version} of {datetime.fromtimestamp(self.recorded_ms / 1_000, UTC):%Y-%m-%d}"

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> SchemaVersion | None:
        """Return None for a record of another program."""
        try:
            return _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


_decoder = msgspec.json.Decoder(SchemaVersion)


class SchemaFile(msgspec.Struct, frozen=True):
    app: str
    schemas: list[SchemaVersion]

    def encode(self) -> bytes:
        """Return indented JSON, in the order of topics and versions, so that a change has a short diff."""
        ordered = SchemaFile(self.app, sorted(self.schemas, key=lambda item: (item.topic, item.version)))
        return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"

    @classmethod
    def decode(cls, raw: bytes, *, where: str) -> SchemaFile:
        try:
            return msgspec.json.decode(raw, type=SchemaFile)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableSchemas(
                f"{where} is not a file of recorded schemas: {error}",
                hint="write it with headrace check --write-schemas",
            ) from error

    def of(self, topic: str) -> list[SchemaVersion]:
        return [version for version in self.schemas if version.topic == topic]


def declared_version(versions: Sequence[SchemaVersion], topic: Topic) -> SchemaVersion | None:
    """Return the recorded version that equals the declared schema; None if it is not recorded."""
    assert topic.schema is not None
    fields = fields_to_json(topic.schema.fields)
    return next((version for version in versions if version.fields == fields), None)


def next_version(
    versions: Sequence[SchemaVersion],
    topic: Topic,
    *,
    topic_id: str = "",
    ends: dict[str, int] | None = None,
    now_ms: int = 0,
) -> SchemaVersion | None:
    """Return the version to record for the declared schema; None if it is recorded already, with the same upcasters."""
    assert topic.schema is not None
    upcast = upcast_digest(topic.upcast)
    recorded = declared_version(versions_of_id(versions, topic_id), topic)
    if recorded is not None:
        return None if recorded.upcast == upcast else msgspec.structs.replace(recorded, upcast=upcast)
    return SchemaVersion(
        topic=topic.name,
        version=max((version.version for version in versions), default=0) + 1,
        name=topic.schema.name,
        fields=fields_to_json(topic.schema.fields),
        key=list(topic.key),
        kind=topic.kind,
        upcast=upcast,
        topic_id=topic_id,
        ends=ends or {},
        recorded_ms=now_ms,
    )


def versions_of_id(versions: Sequence[SchemaVersion], topic_id: str) -> list[SchemaVersion]:
    """Return the versions that were recorded for the topic with this id, oldest first."""
    chosen = (version for version in versions if version.topic_id == topic_id)
    return sorted(chosen, key=lambda version: version.version)


def used_versions(versions: Sequence[SchemaVersion], ends: dict[str, int]) -> list[SchemaVersion]:
    """Return the versions of which the topic may have records. ``versions`` has all versions, oldest first; ``ends``
    has the current ends.

    A later version has no records if nothing was appended between its recording and the next one. The first version
    also describes the records before it.
    """
    used = []
    for index, version in enumerate(versions):
        later = (item.ends for item in versions[index + 1 :] if item.version > version.version)
        if index == 0 or version.ends != next(later, ends):
            used.append(version)
    return used
