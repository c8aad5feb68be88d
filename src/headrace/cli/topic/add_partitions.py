"""``headrace topic add-partitions``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.errors import BrokerRefused, NotConfirmed
from headrace.cli.parameters import Topic
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.key_order import FORCE_CONFIG

__all__ = ["add_partitions"]


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
    number: Annotated[int, typer.Option("--num", "-n", metavar="N", help="How many to add.", min=1)],
    force: Annotated[
        bool, typer.Option("--force", help="Also for a topic that holds records with keys; see above.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")
    ] = False,
) -> None:
    """Add partitions to a topic.

    A key's partition is computed from the number of partitions. When that changes, keys move: such a key's later
    records are in another partition than its earlier ones, and readers may meet the later ones first. A topic that
    holds records with keys therefore needs --force. Its partitions are looked at from both ends for that.
    """
    from headrace.cli.client import open_admin, result_of
    from headrace.cli.kafka_admin import NewPartitions
    from headrace.cli.keyed import holds_keys
    from headrace.cli.lookup import bounds_of, partitions_of
    from headrace.key_order import what_moves

    admin = open_admin(session)
    partitions = partitions_of(session, admin, [name])
    before, after = len(partitions), len(partitions) + number
    moves = what_moves(name, before, after)
    keyed = holds_keys(session, bounds_of(session, admin, partitions))
    if keyed and not force and not dry_run:
        raise NotConfirmed(
            moves,
            hint="pass --force if readers can live with that; otherwise copy to a new, wider topic",
        )
    if keyed:
        session.out.warn(moves)
    if not dry_run:
        if force:
            _allow(session, admin, name)
        futures = admin.create_partitions(
            [NewPartitions(name, after)],
            operation_timeout=session.timeout_s,
            request_timeout=session.timeout_s,
        )
        result_of(futures[name], session, f"adding partitions to {name!r}", topic=name)
    status = "would be added" if dry_run else "added"
    session.out.table([{"topic": name, "before": before, "after": after, "status": status}])


def _allow(session: Session, admin: Any, name: str) -> None:
    """Tell a broker that looks for keys itself to go ahead; Apache Kafka does not, and knows no such config."""
    from headrace.cli.client import result_of
    from headrace.cli.kafka_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(FORCE_CONFIG, "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    futures = admin.incremental_alter_configs([resource], request_timeout=session.timeout_s)
    try:
        result_of(next(iter(futures.values())), session, f"forcing partitions of {name!r}", topic=name)
    except BrokerRefused as refused:
        if "INVALID_CONFIG" not in refused.code:
            raise
