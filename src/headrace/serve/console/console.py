"""What the console asks of the log, kept for as long as the server runs."""

from __future__ import annotations

from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.serve.console.group_looks import GroupLooks
from headrace.serve.console.log_topics import LogTopics
from headrace.serve.console.searches import Searches

__all__ = ["Console"]


class Console:
    """Made in the event loop that serves."""

    def __init__(self, cluster: Cluster, clock: Clock, share_percent: int) -> None:
        self.topics = LogTopics(cluster, clock)
        self.groups = GroupLooks(cluster, clock)
        self.searches = Searches(cluster, share_percent)

    async def close(self) -> None:
        await self.searches.close()
        self.groups.close()
