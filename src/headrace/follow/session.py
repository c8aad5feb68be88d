"""One session of a follower: it owns a view in an open store, and follows the log until it stops or the store fails.

A view has a *serving* part, which answers queries. The session continues it, or builds a new part next to it
(``headrace.follow.rebuild``). If a flow writes the topic and has several generations, the session has a part for each
of them that matters: the serving part follows the generation that serves, the *building* part the one that is built,
the *kept* part the one that served before. When the flow switches, the parts change their roles:

- to the generation of the building part: the building part serves as soon as it contains at least what the serving
  part contains, and the serving part is kept;
- back to the generation of the kept part: both parts change places at once.

The parts take turns in one thread. After any change of a source, the session chooses its parts again.
"""

from __future__ import annotations

import contextlib
import threading

from headrace.client.errors import MissingTopic
from headrace.client.generations import end_of_generations, generations_of, progress_topic_of
from headrace.follow.changelog import FlowProgress, SourceChanged
from headrace.follow.context import FollowContext
from headrace.follow.origin import NotReady, Origin, continued, find_origin, flow_that_writes, open_changelog
from headrace.follow.rebuild import FlowGoal, Goal, TopicGoal, rebuild_reason, retention_of
from headrace.follow.work import CompactedRows, PartWork, Target
from headrace.model.generations import Entry, FlowGenerations
from headrace.model.progress import Sources
from headrace.model.rejection import BuildRecord
from headrace.stores.position import Position, ViewState
from headrace.stores.rows import RowDecoder
from headrace.stores.writer import Changes, Fence, Owner, Part, StoreWriter

__all__ = ["FollowSession"]

_POLL_S = 0.2
_NOT_READY_S = 0.2
_RETRY_S = 0.05
_CHECK_GENERATIONS_S = 0.5


class FollowSession:
    def __init__(self, context: FollowContext, store: StoreWriter, owner: Owner) -> None:
        self._context = context
        self._view = context.view
        self._flows = context.flows
        self._cluster = context.cluster
        self._clock = context.clock
        self._report = context.report
        self._store = store
        self._owner = owner
        self._flow = flow_that_writes(context.view.topic.name, context.flows)
        self._generations: FlowGenerations | None = None
        self._generations_end = -1
        self._generations_checked = 0.0
        self._has_letters = True
        """Whether the view may have dead letters of earlier parts than the building part."""
        self._rebuild_reason: str | None = None
        """The reason for the next rebuild, if the position of the serving part does not show it; else None."""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._read_generations()
            self._swap_parts_back()
            origin = self._origin(Part.SERVING, None)
            if isinstance(origin, NotReady):
                self._report(state="waiting", reason=origin.reason)
                stop.wait(_NOT_READY_S)
                continue
            try:
                with contextlib.ExitStack() as opened:
                    works = self._choose_parts(origin, opened)
                    self._follow(works, stop)
            except CompactedRows as compacted:
                self._rebuild_reason = str(compacted)
            except (SourceChanged, MissingTopic):
                stop.wait(_RETRY_S)

    def _follow(self, works: list[PartWork], stop: threading.Event) -> None:
        """Let the parts take turns. Only a single part, or the first of several idle parts, waits for records."""
        is_busy = False
        while not stop.is_set():
            was_busy, is_busy = is_busy, False
            for work in works:
                waits = work is works[0] and not was_busy
                is_busy = work.step(_POLL_S if waits else 0) or is_busy
            self._check_generations()

    # Generations

    def _read_generations(self) -> None:
        if self._flow is not None:
            self._generations_end = end_of_generations(self._cluster)
            self._generations = generations_of(self._cluster, self._flow)

    def _check_generations(self) -> None:
        """Raise ``SourceChanged`` if the flow switched, or if a generation began or was dropped."""
        now = self._clock.steady()
        if self._flow is None or now - self._generations_checked < _CHECK_GENERATIONS_S:
            return
        self._generations_checked = now
        end = end_of_generations(self._cluster)
        if end != self._generations_end:
            self._generations_end = end
            generations = generations_of(self._cluster, self._flow)
            if _roles(generations) != _roles(self._generations):
                raise SourceChanged("the generations of the flow changed")

    def _entry(self, number: int) -> Entry | None:
        return self._generations.entry(number) if self._generations is not None else None

    @property
    def _serving_number(self) -> int:
        return self._generations.serving if self._generations is not None else 0

    # Choosing the parts

    def _choose_parts(self, origin: Origin, opened: contextlib.ExitStack) -> list[PartWork]:
        first = self._choose_first(origin)
        targets = [first]
        targets += self._choose_building() if first.part is Part.SERVING else self._choose_old_serving()
        targets += self._choose_kept()
        works = []
        for target in targets:
            work = PartWork(self._context, self._store, target, is_reported=target is first)
            works.append(opened.enter_context(contextlib.closing(work)))
        return works

    def _swap_parts_back(self) -> None:
        """If the flow switched back to the generation of the kept part, let that part serve again."""
        kept, serving = self._store.state(Part.KEPT), self._store.state(Part.SERVING)
        if kept is None or kept.fault or serving is None or not self._serving_number:
            return
        is_back = self._is_of(kept, self._serving_number) and not self._is_of(serving, self._serving_number)
        if is_back:
            self._store.swap_back(Fence(self._owner, kept.position.generation))

    def _is_of(self, state: ViewState, number: int) -> bool:
        """Whether the part has the rows of this generation."""
        entry = self._entry(number)
        if entry is None or state.position.generation != number:
            return False
        progress = self._cluster.topic(entry.progress)
        return progress is not None and progress.id == state.position.progress_id

    def _is_of_flow(self, position: Position) -> bool:
        """Whether any generation of the flow wrote the rows at this position."""
        if self._flow is None or not position.generation:
            return False
        topic = self._cluster.topic(progress_topic_of(self._cluster, self._flow, position.generation))
        return topic is not None and topic.id == position.progress_id

    def _origin(self, part: Part, number: int | None) -> Origin | NotReady:
        state = self._store.state(part)
        entry = self._entry(self._serving_number if number is None else number)
        return find_origin(
            self._cluster, self._view, self._flows, entry, state.position if state is not None else None
        )

    def _choose_first(self, origin: Origin) -> Target:
        """Continue the serving part if possible. Otherwise continue the building part, or begin a new building part."""
        store, now = self._store, self._clock.now_ms()
        retention = retention_of(self._cluster, origin.topic)
        requests = store.rebuild_requests()
        serving, building = store.state(Part.SERVING), store.state(Part.BUILDING)
        fence = Fence(self._owner, origin.generation_number)
        serving = self._continue(Part.SERVING, serving, origin)
        reason = "new" if serving is None else self._reason_to_rebuild(origin, serving, requests)
        reason, self._rebuild_reason = reason or self._rebuild_reason, None
        if serving is not None and reason is None:
            return self._target(origin, Part.SERVING, serving, None)
        if building is None or self._reason_to_rebuild(origin, building, requests) is not None:
            start = origin.start(self._cluster, retention.removed_below or {}, now)
            # Before the store begins: if the follower stops in between, it repeats both.
            record = BuildRecord(False, start.topic, start.topic_id, start.offsets)
            self._has_letters = self._context.dead_letters.note_build(record)
            building = store.begin(origin.schema, start, reason or "", fence)
        self._report(state="rebuilding", reason=building.reason)
        target = self._target(origin, Part.BUILDING, building, self._goal(origin, building.position, serving))
        old = serving.position.generation if serving is not None else 0
        target.has_letters = self._has_letters
        target.keeps_old = old != origin.generation_number and self._entry(old) is not None
        return target

    def _choose_building(self) -> list[Target]:
        """Fill the building part from the generation that is being built; drop any other building part."""
        store, requests = self._store, self._store.rebuild_requests()
        building, state = (
            self._generations.building if self._generations is not None else None,
            store.state(Part.BUILDING),
        )
        if building is None:
            if state is not None:
                store.drop(Part.BUILDING, Fence(self._owner, state.position.generation))
            return []
        origin = self._origin(Part.BUILDING, building.number)
        if isinstance(origin, NotReady):
            return []
        if state is None or self._reason_to_rebuild(origin, state, requests) is not None:
            removed_below = retention_of(self._cluster, origin.topic).removed_below or {}
            start = origin.start(self._cluster, removed_below, self._clock.now_ms())
            reason = f"the flow is building generation {building.number}"
            record = BuildRecord(False, start.topic, start.topic_id, start.offsets)
            self._has_letters = self._context.dead_letters.note_build(record)
            state = store.begin(origin.schema, start, reason, Fence(self._owner, building.number))
        return [self._target(origin, Part.BUILDING, state, None)]

    def _choose_old_serving(self) -> list[Target]:
        """Continue with the serving part of another generation until the building part serves."""
        state = self._store.state(Part.SERVING)
        number = state.position.generation if state is not None else 0
        return (
            []
            if state is None or number == self._serving_number
            else self._continue_part(Part.SERVING, state)
        )

    def _choose_kept(self) -> list[Target]:
        """Continue with the kept part while its generation exists; drop it afterwards."""
        state = self._store.state(Part.KEPT)
        if state is None:
            return []
        number = state.position.generation
        if not self._is_of(state, number) or number == self._serving_number:
            self._store.drop(Part.KEPT, Fence(self._owner, number))
            return []
        return self._continue_part(Part.KEPT, state)

    def _continue_part(self, part: Part, state: ViewState) -> list[Target]:
        """Continue the part with its own generation, if that is possible."""
        number = state.position.generation
        if not self._is_of(state, number):
            return []
        origin = self._origin(part, number)
        if isinstance(origin, NotReady):
            return []
        continued_state = self._continue(part, state, origin)
        if continued_state is None or self._reason_to_rebuild(origin, continued_state, 0) is not None:
            return []
        return [self._target(origin, part, continued_state, None)]

    def _continue(self, part: Part, state: ViewState | None, origin: Origin) -> ViewState | None:
        """If the generation of the part continued in another topic, move the part's position to that topic."""
        after = continued(origin, state.position) if state is not None else None
        if state is None or after is None:
            return state
        fence = Fence(self._owner, state.position.generation)
        self._store.apply(part, Changes(state.schema), state.position, after, fence)
        return self._store.state(part)

    def _reason_to_rebuild(self, origin: Origin, state: ViewState, requests: int) -> str | None:
        """Return the reason why the part cannot be continued; None if it can."""
        if state.fault:
            return state.fault
        if state.rebuild_requests < requests:
            return "requested"
        retention = retention_of(self._cluster, origin.topic)
        return rebuild_reason(self._cluster, origin, state, retention, self._clock.now_ms())

    def _target(self, origin: Origin, part: Part, state: ViewState, goal: Goal | None) -> Target:
        position = state.position
        offsets = {number: position.offsets.get(number, 0) for number in range(origin.partitions)}
        progress: FlowProgress | None = None
        sources: Sources | None = None
        if origin.generation is not None:
            begin = max(position.progress_offset, origin.generation_offset + 1)
            progress = FlowProgress(origin.progress, begin, origin.generation_number)
            sources = position.sources if origin.generation.latency == "realtime" else None
        max_rows = max(self._context.max_rows, self._store.rows_at_once)
        changelog = open_changelog(self._cluster, origin.topic, offsets, progress, sources, max_rows)
        # Use the stored time until this session has reached the end of the topic once.
        away_s = max(0, self._clock.now_ms() - position.complete_ms) / 1_000
        if goal is not None or origin.generation_number == self._serving_number:
            self._report(position=position)
        return Target(
            origin,
            part,
            position,
            changelog,
            RowDecoder(origin.schema, origin.topic_key, origin.upcast),
            goal,
            Fence(self._owner, origin.generation_number),
            retention_of(self._cluster, origin.topic),
            self._clock.steady() - away_s,
            self._store.limits(origin.schema),
        )

    def _goal(self, origin: Origin, position: Position, serving: ViewState | None) -> Goal:
        if origin.generation is None:
            return TopicGoal(self._cluster, origin.topic)
        old = serving.position if serving is not None else None
        replaced = old if old is not None and self._is_of_flow(old) else None
        return FlowGoal(self._cluster, origin, self._flows, position, replaced, self._clock)


def _roles(generations: FlowGenerations | None) -> object:
    if generations is None:
        return None
    numbers = [(entry.number, entry.topic) for entry in generations.entries]
    return generations.serving, numbers
