"""Whether what a view shows has all that a token tells of, also where flows lie in between.

A view's position says how far it has read its topic. Of a topic that a flow writes, the flow's progress says which of
the flow's inputs are in what was read; and so on, up to the topic that the token names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.flow import Flow
from headrace.model.progress import Generation
from headrace.model.source import Sources
from headrace.model.view import View
from headrace.serve.errors import TokenOutdated, TokenUnfit
from headrace.serve.progress_tail import Noted, ProgressTail
from headrace.serve.token import Token
from headrace.views.origin import flow_that_writes
from headrace.views.position import Position

__all__ = ["Coverage"]

_GENERATION = re.compile(r"(.+)\.g[0-9]+")

Ends = Mapping[int, int]


class Coverage:
    """For any thread."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._app = app
        self._tails = {flow.name: ProgressTail(cluster, flow.progress_topic) for flow in app.flows}

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def look(self, view: View) -> None:
        """Asks the log how far the flows are that the view derives from."""
        for flow in self._flows(view):
            self._tails[flow.name].look()

    def newest_output(self, flow: Flow) -> str | None:
        """The topic of the log that the flow writes now; asks the log."""
        tail = self._tails[flow.name]
        tail.look()
        return tail.newest_output()

    def expect_about(self, view: View, token: Token) -> None:
        """Raises unless the view derives from some topic of the token."""
        known = {view.topic.name, *(topic.name for flow in self._flows(view) for topic in flow.reads)}
        if not any(_app_name(log, known) for log in token.topics):
            raise TokenUnfit(
                f"view {view.name!r} does not derive from {', '.join(sorted(token.topics))[:300]}",
                hint=f"it derives from {', '.join(sorted(known))}",
            )

    def covers(self, view: View, position: Position, token: Token) -> bool:
        met: set[str] = set()
        walk = _Walk(token, met)
        covered = walk.has(position.topic, position.topic_id, position.offsets)
        flow = flow_that_writes(view.topic.name, self._app.flows)
        if flow is not None:
            tail = self._tails[flow.name]
            generation = tail.generation(position.generation)
            noted = tail.at_batch(position.generation, position.batch)
            covered = self._derived(walk, flow, generation, noted, position) and covered
        if covered and not met:
            # All of it is known, and nothing of the token was on the way.
            raise TokenOutdated(
                f"after is of {', '.join(sorted(token.topics))[:300]}, which view {view.name!r} does not derive"
                " from any more: a flow was rebuilt",
                hint="read without it, and take the token of that answer",
            )
        return covered

    def _derived(
        self,
        walk: _Walk,
        flow: Flow,
        generation: Generation | None,
        noted: Noted | None,
        position: Position | None = None,
    ) -> bool:
        """``position`` is that of a view of what the flow writes, where it is asked for one."""
        if generation is None:
            return False
        realtime = generation.latency == "realtime" and position is not None
        if noted is None and not realtime:
            return False
        covered = True
        for one in generation.inputs:
            ends: Ends = noted.inputs.get(one.log, {}) if noted else {}
            if realtime and one.kind == "events" and position is not None:
                ends = _seen(ends, position)
            covered = walk.has(one.log, one.topic_id, ends) and covered
            above = flow_that_writes(one.topic, self._app.flows)
            if above is not None and above is not flow:
                tail = self._tails[above.name]
                writer = tail.generation(output=one.log)
                read = tail.read_up_to(writer.generation, dict(ends)) if writer else None
                covered = self._derived(walk, above, writer, read) and covered
        return covered

    def _flows(self, view: View) -> list[Flow]:
        """Those that it derives from, directly or not."""
        found: list[Flow] = []
        waiting = [view.topic.name]
        while waiting:
            flow = flow_that_writes(waiting.pop(), self._app.flows)
            if flow is not None and flow not in found:
                found.append(flow)
                waiting += [topic.name for topic in flow.reads]
        return found


class _Walk:
    def __init__(self, token: Token, met: set[str]) -> None:
        self._token = token
        self._met = met

    def has(self, log: str, topic_id: str, ends: Ends) -> bool:
        """Whether the token says nothing of the topic, or no more than what was read of it."""
        wanted = self._token.topics.get(log)
        if wanted is None:
            return True
        if wanted.topic_id != topic_id:
            raise TokenOutdated(
                f"after is of a topic {log!r} that was deleted; there is another of that name now",
                hint="read without it, and take the token of that answer",
            )
        self._met.add(log)
        return all(ends.get(number, 0) >= end for number, end in wanted.ends.items())


def _app_name(log: str, known: set[str]) -> bool:
    """Whether the topic of the log is one of these, in any generation."""
    found = _GENERATION.fullmatch(log)
    return log in known or (found is not None and found[1] in known)


def _seen(ends: Ends, position: Position) -> dict[int, int]:
    """Rows of a flow in real time have their sources: of a partition of the input, all rows up to the least of those
    that the partitions of the output have come to are there.
    """
    found = dict(ends)
    sources: Sources = position.sources
    partitions = {int(place.partition("/")[2]) for place in sources}
    for number in partitions:
        least = min(sources.get(f"{output}/{number}", -1) for output in position.offsets)
        found[number] = max(least + 1, found.get(number, 0))
    return found
