"""``headrace topic alter``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.parameters import Topic
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import verb

__all__ = ["alter"]


@verb(
    "alter",
    examples="""
    headrace topic alter orders --set retention.ms=86400000
    headrace topic alter orders --set segment.bytes=67108864 --unset retention.ms
    """,
)
def alter(
    session: Session,
    name: Topic,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Go back to the default; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Have the broker check it, and change nothing.")
    ] = False,
) -> None:
    """Change a topic's configs.

    Those that are not named stay as they are.
    """
    from headrace.cli.client import open_admin, result_of
    from headrace.cli.kafka_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
    from headrace.cli.lookup import describe_topics

    values = parse_pairs(set_ or (), "--set")
    both = values.keys() & set(unset or ())
    if both:
        raise UsageError(f"{', '.join(sorted(both))} cannot be set and unset at once")
    if not values and not unset:
        raise UsageError("nothing to change", hint="pass --set key=value or --unset key")
    admin = open_admin(session)
    describe_topics(session, admin, [name])
    operations = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
    ]
    operations += [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset or ()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=operations)
    futures = admin.incremental_alter_configs(
        [resource], validate_only=dry_run, request_timeout=session.timeout_s
    )
    result_of(next(iter(futures.values())), session, f"changing topic {name!r}", topic=name)
    status = "would change" if dry_run else "changed"
    rows = [{"topic": name, "config": key, "value": value, "status": status} for key, value in values.items()]
    rows += [{"topic": name, "config": key, "value": "(default)", "status": status} for key in unset or ()]
    session.out.table(rows)
