"""Reads and writes the recorded schemas of apps: topic ``headrace.schemas.<app>`` (``headrace.model.schema_version``).

The app that first records a topic owns its versions. Another app that declares the topic reads them, and records
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaException

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.records import read, write
from headrace.model.declarations import SCHEMAS_PREFIX, schemas_topic
from headrace.model.schema_version import SchemaVersion, UnreadableSchemas

__all__ = ["OwnedVersions", "owned_versions", "record_version"]

_BYTES_MAX = 64 * 1024 * 1024

OwnedVersions = tuple[str, list[SchemaVersion]]
"""The app that owns a topic's versions, and the versions in the order of their numbers."""


def owned_versions(cluster: Cluster, app: str, topics: Sequence[str]) -> dict[str, OwnedVersions]:
    """Return the recorded versions by topic. A topic that no app has recorded is missing."""
    owned = {topic: (app, versions) for topic, versions in _versions(cluster, app, topics).items()}
    unrecorded = [topic for topic in topics if topic not in owned]
    for other in _other_apps(cluster, app) if unrecorded else ():
        for topic, versions in _versions(cluster, other, unrecorded).items():
            owned.setdefault(topic, (other, versions))
    return owned


def record_version(cluster: Cluster, app: str, version: SchemaVersion) -> None:
    """Write a version, and create the topic of the app unless it exists."""
    topic = schemas_topic(app)
    cluster.ensure_topic(topic, 1, {"cleanup.policy": "compact"})
    doing = f"recording the schema of topic {version.topic!r} in topic {topic!r}"
    write(cluster, topic, version.log_key, version.encode(), doing)


def _other_apps(cluster: Cluster, app: str) -> Iterable[str]:
    try:
        names = sorted(cluster.metadata().topics)
    except KafkaException as error:
        raise from_kafka(error, "listing the topics") from error
    apps = (name.removeprefix(SCHEMAS_PREFIX) for name in names if name.startswith(SCHEMAS_PREFIX))
    return [name for name in apps if name and name != app]


def _versions(cluster: Cluster, app: str, topics: Sequence[str]) -> dict[str, list[SchemaVersion]]:
    topic = schemas_topic(app)
    if cluster.topic(topic) is None:
        return {}
    by_key: dict[bytes, SchemaVersion] = {}
    size = 0
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        key, value = message.key() or b"", message.value() or b""
        size += len(key) + len(value)
        if size > _BYTES_MAX:
            raise UnreadableSchemas(
                f"topic {topic} has more than {_BYTES_MAX} bytes",
                hint="only headrace may write it; delete records of other programs, and set cleanup.policy=compact",
            )
        version = SchemaVersion.decode(value)
        by_key.pop(key, None)
        if version is not None and version.topic in topics:
            by_key[key] = version
    versions: dict[str, list[SchemaVersion]] = {}
    for version in sorted(by_key.values(), key=lambda item: item.version):
        versions.setdefault(version.topic, []).append(version)
    return versions
