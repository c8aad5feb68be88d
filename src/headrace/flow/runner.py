"""Runs a flow until it is stopped, and opens it again after each error that a retry can resolve."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.client.errors import LogError
from headrace.client.generations import GenerationsCache, generations_of
from headrace.client.generations_writer import cancel_abandoned_switches
from headrace.client.progress import current, reached, unread_records
from headrace.client.records import read
from headrace.client.transactional_writer import WriterRefused
from headrace.errors import HeadraceError
from headrace.flow.checkpoint_fit import last_progress
from headrace.flow.context import FlowContext
from headrace.flow.engine.engine import BATCH_S_MAX, Engine
from headrace.flow.engine.enrichment import EnrichmentRun
from headrace.flow.engine.micro_batch import MicroBatchRun
from headrace.flow.engine.realtime import RealtimeRun
from headrace.flow.errors import (
    FlowChanged,
    FlowFenced,
    GenerationMoved,
    InputReplaced,
    SwitchUnderWay,
    TableRepartitioned,
)
from headrace.flow.failures import blame, explain, is_retriable
from headrace.flow.flow_state import FlowState, open_flow
from headrace.flow.generation_choice import (
    begin_generation,
    choose_generation,
    first_entry,
    upstream_being_built,
)
from headrace.flow.ownership import Ownership, expect_owner, open_writer
from headrace.flow.switch.coverage import Coverage
from headrace.flow.switch.policy import SwitchPolicy
from headrace.model.errors import SourceLocation
from headrace.model.generations import Entry, FlowGenerations, GenerationUnknown

__all__ = ["FlowFailure", "FlowRunner", "FlowStatus"]

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_STABLE_S = 30.0
_SAMPLE_RECORDS = 100
_SWITCH_PAUSE_S = 15.0
_SWITCH_PAUSE_S_MAX = 1_800.0
"""After a switch that failed at its last step, when the flow had already paused for it."""
_OWNER_CHECK_S = 1.0
_SHRINK_FACTOR = 4
"""A batch that exceeded its transaction timeout is retried with a quarter of its rows."""


@dataclass(slots=True)
class FlowStatus:
    """The current status, for display. The progress records in the log have the committed work."""

    name: str
    state: Literal["starting", "running", "waiting", "stopped", "failed"] = "starting"
    why: str = ""


@dataclass(frozen=True, slots=True)
class FlowFailure:
    """The last error. It ended the flow, or a retry resolved it."""

    error: HeadraceError
    location: SourceLocation | None
    """The line in the user's files."""
    at_ms: int


class FlowRunner:
    """Runs one generation of a flow in one thread. ``run`` returns when ``stop`` is set, and raises errors that a retry
    cannot resolve.

    ``number`` is the generation; 0 chooses one that the function began (``headrace.flow.generation_choice``). If
    ``rebuild`` is not empty, the first start begins a new generation, with ``rebuild`` as its reason. With
    ``rebuild_changed``, a new generation begins whenever the function or an input changed.

    A generation that is being built is switched to when it has caught up and the difference is within the limits
    (``headrace.flow.switch``). ``note`` prints a line for the user.
    """

    def __init__(
        self,
        context: FlowContext,
        number: int = 0,
        *,
        rebuild: str = "",
        rebuild_changed: bool = False,
        is_deployment: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.status = FlowStatus(context.flow.name)
        self.opened = threading.Event()
        """Set when the generation is recorded in the log. Readers of the flow's output can then open the topic."""
        self.current: FlowState | None = None
        self.failure: FlowFailure | None = None
        self.patience_s = BATCH_S_MAX
        """How long a stop waits for the current batch."""
        self.context = context
        self._flow = context.flow
        self._cluster = context.cluster
        self._options = context.options
        self._number = number
        self._note = note
        self._rebuild = rebuild
        self._rebuild_changed = rebuild_changed
        self._is_deployment = is_deployment
        self._ownership = self._new_ownership()
        self._generations = GenerationsCache(context.cluster)
        self._failed_switches = 0
        self._engine: Engine | None = None
        self._ends: tuple[float, dict[str, dict[int, int]]] = (0.0, {})

    def _new_ownership(self) -> Ownership:
        return Ownership(self._cluster, self._flow, self._options.transaction_timeout_ms)

    def run(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                self._run_once(stop)
            except Exception as raised:
                error = self._cause(raised)
                output = self.current.generation.output if self.current else ""
                explained = explain(self._flow, error, self._position(), output)
                location = blame(self._flow, error)
                self.failure = FlowFailure(explained, location, time.time_ns() // 1_000_000)
                if self._ends_quietly(error):
                    self._note(f"flow {self._flow.name}: generation {self._number} ends: {explained.message}")
                    break
                if not is_retriable(error):
                    self.status.state, self.status.why = "failed", explained.message
                    raise explained from (None if explained is raised else raised)
                if isinstance(error, SwitchUnderWay):
                    with contextlib.suppress(LogError):
                        cancel_abandoned_switches(
                            self._cluster, self.context.app, self._flow, time.time_ns() // 1_000_000
                        )
                failures = 0 if time.monotonic() - began_s > _STABLE_S else failures + 1
                self.status.state = "waiting"
                self.status.why = (
                    error.message if isinstance(error, HeadraceError) else "the log is unreachable"
                )
                stop.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
        self.status.state, self.status.why = "stopped", ""

    def _ends_quietly(self, error: Exception) -> bool:
        """Whether the generation was dropped, or does not serve and never will by itself, and cannot continue."""
        if isinstance(error, GenerationUnknown):
            return True
        if is_retriable(error) or not self._number:
            return False
        with contextlib.suppress(LogError):
            generations = generations_of(self._cluster, self._flow)
            return generations is not None and generations.role(self._number) in ("kept", "superseded")
        return False

    def _cause(self, error: Exception) -> Exception:
        """Return ``FlowFenced`` if another driver has opened the flow, because that is the cause of any other error."""
        try:
            self._ownership.expect_current_owner()
            if isinstance(error, WriterRefused):
                if self.current is not None and self._has_moved(
                    self.current, generations_of(self._cluster, self._flow)
                ):
                    return GenerationMoved(self._flow.name, self._number)
                return self._ownership.error_for_refusal(error, self.current.last if self.current else None)
        except FlowFenced as fenced:
            return fenced
        except LogError:
            # _run_once checks the owner again before it opens the flow.
            return error
        return error

    def _has_moved(self, state: FlowState, generations: FlowGenerations | None) -> bool:
        """Whether the flow switched between generations since this one was opened."""
        if generations is None:
            return False
        if generations.is_paused(self._number) or generations.entry(self._number) is None:
            return True
        entry = generations.expect(self._number)
        writes_both = generations.writes_stable(self._number) and entry.topic != generations.stable
        now = (entry.topic, writes_both, self._number == generations.serving)
        return now != (state.generation.output, bool(state.stable), state.is_serving)

    def _run_once(self, stop: threading.Event) -> None:
        self._ownership.expect_current_owner()
        entry = self._entry()
        try:
            policy = self._run_generation(entry, stop)
        except (FlowChanged, InputReplaced, TableRepartitioned) as changed:
            if not self._rebuild_changed:
                raise
            self._number = self._begin_generation(changed.message).number
            self._ownership = self._new_ownership()
            policy = self._run_generation(self._entry(), stop)
        if policy is not None:
            self._failed_switches = 0 if policy.switch() else self._failed_switches + 1

    def _begin_generation(self, reason: str) -> Entry:
        return begin_generation(self.context, reason, is_deployed=self._is_deployment)

    def _entry(self) -> Entry:
        """Return the generation to run. Begin it if a rebuild was requested."""
        if self._rebuild:
            exists = generations_of(self._cluster, self._flow) is not None
            self._number = self._begin_generation(self._rebuild).number if exists else 1
            self._rebuild = ""
        if not self._number:
            entry = choose_generation(self.context)
            building = self._rebuild_changed and upstream_being_built(self.context)
            return self._begin_generation(building) if building else entry
        generations = generations_of(self._cluster, self._flow)
        return first_entry(self.context) if generations is None else generations.expect(self._number)

    def _run_generation(self, entry: Entry, stop: threading.Event) -> SwitchPolicy | None:
        """Run until ``stop`` is set, or until the flow can switch to this generation. Then return the policy."""
        self._ownership.progress_topic = entry.progress
        # Check this before opening the writer, which would fence the owner.
        expect_owner(self._cluster, self.context.app, self._flow)
        policy: SwitchPolicy | None = None
        is_due = False
        writer = open_writer(self._cluster, self._flow, entry, self._options.transaction_timeout_ms)
        try:
            state = open_flow(self.context, writer, self._ownership, entry)
            self.current, self._number = state, entry.number
            # A cache from before the switch would show the roles of then.
            self._generations = GenerationsCache(self._cluster)
            self.opened.set()
            self._wait_for_tables(state, stop)
            if stop.is_set():
                return None
            pause_s = min(_SWITCH_PAUSE_S * 2 ** min(self._failed_switches, 10), _SWITCH_PAUSE_S_MAX)
            policy = SwitchPolicy(
                self.context,
                state.generation,
                self._note,
                pause_s=pause_s if self._failed_switches else 0,
            )
            kind = self._engine_kind()
            engine = kind(self.context, state, writer, self._rows_max(state))
            with contextlib.closing(engine):
                engine.start()
                self._engine = engine
                self.status.state, self.status.why = "running", ""
                self._watch(engine, stop, policy)
            is_due = policy.is_due and not stop.is_set()
        finally:
            self._engine = None
            writer.close()
            if policy is not None and not is_due:
                policy.close()
        return policy if is_due else None

    def _wait_for_tables(self, state: FlowState, stop: threading.Event) -> None:
        """Before the first batch of a new generation, wait until the tables that it joins are complete: each event is
        joined once, with the rows that the tables have then.
        """
        generations = generations_of(self._cluster, self._flow)
        if not self._flow.tables or state.is_serving or state.last is not None or generations is None:
            return
        serving = current(self._cluster, generations.serving_entry.progress)
        if serving is None:
            return
        coverage = Coverage(self._cluster, serving, state.generation)
        while not coverage.are_tables_complete() and not stop.is_set():
            self.status.state, self.status.why = "waiting", "a flow that writes a table derives its history"
            stop.wait(_OWNER_CHECK_S)
            if self._has_moved(state, self._generations.get(self._flow)):
                raise GenerationMoved(self._flow.name, self._number)
            self._ownership.expect_current_owner_when_idle(None)

    def _engine_kind(self) -> type[Engine]:
        if self._flow.is_realtime:
            return RealtimeRun
        return EnrichmentRun if self._flow.tables else MicroBatchRun

    def _watch(self, engine: Engine, stop: threading.Event, policy: SwitchPolicy) -> None:
        checked_s = time.monotonic()
        while engine.query.isActive and not engine.too_large and not policy.is_due and not stop.wait(0.1):
            try:
                engine.poll(stop)
                # If the log does not respond, the next batch reports it.
                with contextlib.suppress(LogError):
                    policy.poll(engine.state.last)
            except BaseException:
                # Else the query would continue without this object.
                engine.stop(self.patience_s)
                raise
            # An idle flow commits nothing, so the log cannot refuse it.
            if time.monotonic() - checked_s > _OWNER_CHECK_S:
                checked_s = time.monotonic()
                self._expect_owner(engine, policy)
        if stop.is_set() or ((engine.too_large or policy.is_due) and engine.error is None):
            engine.stop(self.patience_s)
            return
        engine.wait_for_end()
        query_error = engine.query.exception()
        if engine.error is not None:
            raise engine.error
        if query_error is not None:
            raise query_error

    def _expect_owner(self, engine: Engine, policy: SwitchPolicy) -> None:
        with contextlib.suppress(LogError):
            try:
                # A switch by this driver itself ends the engine when it is due. This is checked first, because a
                # generation that was dropped has no progress topic that names an owner.
                if not policy.is_switching and self._has_moved(
                    engine.state, self._generations.get(self._flow)
                ):
                    raise GenerationMoved(self._flow.name, self._number)
                self._ownership.expect_current_owner_when_idle(engine.state.last)
                # Without new records there is no batch that would find a switch of a flow upstream.
                engine.upstream.expect_same()
            except (FlowFenced, GenerationMoved, InputReplaced, SwitchUnderWay):
                engine.stop()
                raise

    def _position(self) -> str:
        """Describe the flow's checkpoint and last progress, for error messages."""
        if self.current is None:
            return ""
        progress = last_progress(self.current.generation, self.current.last)
        if not (self.context.compiled.stateful or self._flow.is_realtime):
            return progress
        return f"the checkpoint is at {self.current.checkpoint}, {progress}"

    @property
    def number(self) -> int:
        """The generation; 0 until it is chosen."""
        return self._number

    @property
    def latency(self) -> str:
        return self._flow.latency

    @property
    def took_ms(self) -> float | None:
        """How long the last batch of this run took, from its plan to its commit; None for a real-time flow."""
        engine = self._engine
        return engine.took_ms if engine else None

    @property
    def is_busy(self) -> bool:
        """Whether a batch runs that a stop would wait for."""
        engine = self._engine
        return engine is not None and engine.is_busy

    @property
    def is_idle(self) -> bool:
        """Whether the flow has nothing to do after its last record: a batch without records may follow, and write rows
        that waited for the watermark. This calls the JVM.
        """
        engine = self._engine
        if engine is None:
            return False
        try:
            return engine.is_idle
        except (AssertionError, PySparkException, Py4JError):
            # The run can end at any time.
            return False

    def plan(self, chars_max: int) -> str | None:
        """Return Spark's physical plan of the last batch. This calls the JVM."""
        engine = self._engine
        if engine is None:
            return None
        try:
            return engine.plan(chars_max)
        except (AssertionError, PySparkException, Py4JError):
            # The run can end at any time.
            return None

    def lag(self) -> int:
        """Return how many records of the input topics are not yet read by a committed batch. Queries the log at most
        once per second. While the log does not respond, the last known end offsets are used.
        """
        state = self.current
        if state is None:
            return 0
        now = time.monotonic()
        streams = [source for source in state.generation.inputs if source.kind == "events"]
        if now - self._ends[0] > 1.0:
            ends = self._ends[1]
            with contextlib.suppress(LogError):
                ends = {source.log: self._cluster.ends(source.log) for source in streams}
            self._ends = (now, ends)
        return unread_records(state.generation, state.last, self._ends[1])

    def _rows_max(self, state: FlowState) -> int:
        """Return how many records a batch may read, estimated from the size of the next records."""
        sizes = []
        for source in state.generation.inputs:
            if source.kind != "events":
                continue
            ends = self._cluster.ends(source.log)
            ranges = {
                number: (offset, min(ends[number], offset + _SAMPLE_RECORDS))
                for number, offset in reached(source, state.last).items()
            }
            sizes += [len(message) for message in read(self._cluster, source.log, ranges)]
        average_bytes = max(1, sum(sizes) // len(sizes)) if sizes else 1
        rows = min(self._options.max_rows, self._options.max_bytes // average_bytes)
        return max(1, rows // int(_SHRINK_FACTOR**self._ownership.refusals))
