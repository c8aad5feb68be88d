"""Names for the shell to offer: asked of the broker while a person holds down Tab.

So: a second at most, and silence when there is no broker. An error in the middle of someone's half-typed
line would be worse than no names.
"""

from __future__ import annotations

from typing import Any

import typer

from headrace.cli.session import Session
from headrace.errors import HeadraceError

__all__ = ["complete_groups", "complete_topics"]

COMPLETION_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 0.3


def _session(context: typer.Context) -> Session:
    """As far as the line has been typed: its own options, those before the verb, the environment."""
    chain: Any = context
    typed: dict[str, Any] = {}
    while chain is not None:
        typed = {**{name: value for name, value in chain.params.items() if value}, **typed}
        chain = chain.parent
    return Session.begin(
        bootstrap_servers=typed.get("bootstrap_servers"),
        client_property=typed.get("client_property") or (),
        as_json=False,
        quiet=True,
        verbose=False,
        config=typed.get("settings_file"),
    )


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    from headrace.cli.client import cluster_metadata, open_admin
    from headrace.cli.reach import check_reachable

    try:
        session = _session(context)
        check_reachable(session.bootstrap, timeout_s=_CONNECT_TIMEOUT_S)
        admin = open_admin(session)
        topics = cluster_metadata(session, admin, COMPLETION_TIMEOUT_S).topics
    except (HeadraceError, TimeoutError):
        return []
    return sorted(name for name in topics if incomplete.startswith("_") or not name.startswith("__"))


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    from confluent_kafka import KafkaException

    from headrace.cli.client import open_admin
    from headrace.cli.reach import check_reachable

    try:
        session = _session(context)
        check_reachable(session.bootstrap, timeout_s=_CONNECT_TIMEOUT_S)
        admin = open_admin(session)
        future = admin.list_consumer_groups(request_timeout=COMPLETION_TIMEOUT_S)
        listing = future.result(timeout=COMPLETION_TIMEOUT_S)
    except (HeadraceError, KafkaException, TimeoutError):
        return []
    return sorted(group.group_id for group in listing.valid)
