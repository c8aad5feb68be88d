"""The check of ``headrace view follow`` and ``rebuild`` before they change a view: do the records of the log fit the
schemas of the views' topics?
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.cli.errors import BrokerUnreachable
from headrace.cli.session import Session
from headrace.clock import SystemClock
from headrace.model.declarations import View, source_topics

if TYPE_CHECKING:
    from headrace.app import App

__all__ = ["check_history_of_views", "wait_for_history"]

_RETRY_S = 0.2


def check_history_of_views(session: Session, app: App, views: Sequence[View]) -> None:
    """Raise ``AppMistakes`` if the history does not fit; otherwise record the schemas. Raises ``BrokerUnreachable``."""
    from headrace.cli.reach import check_reachable
    from headrace.ops.schemas.start import expect_history_fits

    followed = {view.topic.name for view in views}
    topics = [topic for topic in source_topics(app) if topic.name in followed]
    check_reachable(session.bootstrap)
    cluster = session.cluster_of(app, check=False)
    if topics:
        expect_history_fits(cluster, app, SystemClock().now_ms(), topics=topics).record(cluster)


def wait_for_history(
    session: Session, app: App, views: Sequence[View], stop_requested: Callable[[], bool]
) -> bool:
    """Check when the log responds. Returns False if a stop is requested before."""
    from headrace.client.errors import LogError

    is_waiting = False
    while not stop_requested():
        try:
            check_history_of_views(session, app, views)
        except (BrokerUnreachable, LogError) as error:
            if isinstance(error, LogError) and not error.retriable:
                raise
            if not is_waiting:
                is_waiting = True
                session.out.note(f"waiting for the log: {error}")
            time.sleep(_RETRY_S)
        else:
            return True
    return False
