"""``headrace topic add-partitions``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import BrokerRefused, CliError, NotConfirmed
from headrace.cli.options import Topic
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.key_order import FORCE_CONFIG

if TYPE_CHECKING:
    from headrace.cli.kafka import Bounds, Partition

__all__ = ["add_partitions"]

_SAMPLED_RECORDS = 50
"""How many records are read at each end of each partition."""
_WAIT_S = 5.0


@verb(
    "add-partitions",
    examples="""
    headrace topic add-partitions orders -n 3
    headrace topic add-partitions orders -n 3 --force
    """,
)
def add_partitions(
    session: Session,
    name: Topic,
    number: Annotated[
        int, typer.Option("--num", "-n", metavar="N", help="Number of partitions to add.", min=1)
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Add partitions even if the topic has records with keys; see above."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change without making it.")] = False,
) -> None:
    """Add partitions to a topic.

    A key's partition depends on the number of partitions. When the number changes, keys move to other partitions. Then
    the earlier and the later records of a key are in different partitions, and readers can read the later records
    first. So a topic that has records with keys needs --force. The command checks the first and last records of each
    partition for keys.
    """
    from headrace.cli.kafka import NewPartitions, bounds_of, partitions_of, result_of
    from headrace.key_order import describe_moved_keys

    partitions = partitions_of(session, [name])
    before, after = len(partitions), len(partitions) + number
    moves = describe_moved_keys(name, before, after)
    keyed = _has_keys(session, bounds_of(session, partitions))
    if keyed and not force and not dry_run:
        raise NotConfirmed(
            moves,
            hint="pass --force to accept this; otherwise copy the records to a new topic with more partitions",
        )
    if keyed:
        session.out.warn(moves)
    if not dry_run:
        if force:
            _set_force_config(session, name)
        futures = (
            session.cluster()
            .admin()
            .create_partitions(
                [NewPartitions(name, after)],
                operation_timeout=session.timeout_s,
                request_timeout=session.timeout_s,
            )
        )
        result_of(futures[name], session, f"adding partitions to {name!r}", topic=name)
    status = "would be added" if dry_run else "added"
    session.out.table([{"topic": name, "before": before, "after": after, "status": status}])


def _set_force_config(session: Session, name: str) -> None:
    """Set the config that lets the embedded broker accept the request: this broker checks for keys too.

    Apache Kafka does not have this config and rejects it, which is ignored.
    """
    from headrace.cli.kafka import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType, result_of

    entry = ConfigEntry(FORCE_CONFIG, "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    futures = (
        session.cluster().admin().incremental_alter_configs([resource], request_timeout=session.timeout_s)
    )
    try:
        result_of(next(iter(futures.values())), session, f"forcing partitions of {name!r}", topic=name)
    except BrokerRefused as refused:
        if "INVALID_CONFIG" not in refused.code:
            raise


def _has_keys(session: Session, bounds: Mapping[Partition, Bounds]) -> bool:
    """Whether the first or last records of a partition include a record with a key.

    The embedded broker also checks this. The check here works with any Kafka broker.
    """
    non_empty = {partition: limits for partition, limits in bounds.items() if limits.end > limits.start}
    if not non_empty:
        return False
    consumer = session.cluster().consumer(
        {
            "group.id": "headrace-keys",
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 65_536,
            "fetch.wait.max.ms": 50,
        }
    )
    with closing(consumer):
        first = {partition: limits.start for partition, limits in non_empty.items()}
        last = {
            partition: max(limits.start, limits.end - _SAMPLED_RECORDS)
            for partition, limits in non_empty.items()
        }
        return any(_reads_key(consumer, starts) for starts in ([first] if first == last else [first, last]))


def _reads_key(consumer: Any, starts: Mapping[Partition, int]) -> bool:
    from confluent_kafka import KafkaError, TopicPartition

    consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in starts.items()])
    unread = dict.fromkeys(starts, _SAMPLED_RECORDS)
    while unread:
        message: Any = consumer.poll(_WAIT_S)
        if message is None:
            # The records could not be read, so assume keys: the user can still pass --force.
            return True
        partition = (message.topic(), message.partition())
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise CliError(f"reading keys failed: {error.str()}")
            unread.pop(partition, None)
            continue
        if message.key() is not None:
            return True
        if partition in unread:
            unread[partition] -= 1
            if not unread[partition]:
                del unread[partition]
    return False
