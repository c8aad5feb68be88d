"""A switch of a flow from the serving generation to another one.

    begin      record the switch, and fence the serving generation: from now on it writes nothing
    covered    wait until the other generation has read at least what the serving one has read
    complete   seal the other generation too, compare the two topics, and commit in one transaction: the difference to
               the stable topic, and the record that the other generation serves
    cancel     record that there is no switch; the serving generation continues

On the way back to a kept generation, views must not wait until large topics are compared. ``complete_unpublished`` only
records that the generation serves. The difference is published afterwards, with a second operation: a switch from the
generation to itself.

Every step first writes to the log and then fences a driver. A driver reads the record after it opened its transactional
id. So either it was opened before, and is fenced, or it sees the step, and waits.

If the process dies before the commit, nothing has changed except that drivers wait. As soon as the switch is abandoned
(``headrace.client.generations.is_abandoned``), one of them cancels it. The dead process may only be slow: then its
transactional id is fenced by that, and its transaction cannot commit.

The first generation writes the stable topic itself. When another generation replaces it, it continues in a topic of its
own. The transaction of the switch copies the rows to that topic, so that the way back can be compared in the same way.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_derived
from headrace.client.errors import LogError
from headrace.client.generations import find_generations, generations_of, transactional_id_of
from headrace.client.generations_writer import GenerationsWriter, is_abandoned, process_name
from headrace.client.progress import Progress, current, wait_until_decided
from headrace.client.transactional_writer import TransactionalWriter, WriterRefused
from headrace.clock import Clock, SystemClock
from headrace.flow.errors import FlowError, SwitchUnderWay
from headrace.flow.switch.difference import Difference
from headrace.flow.switch.report import SwitchReport, shares_of
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, GenerationUnknown
from headrace.model.progress import Batch, Generation
from headrace.settings import SwitchSettings

__all__ = [
    "Comparison",
    "SwitchOperation",
    "SwitchRefused",
    "covers",
    "publish",
    "switch_back",
    "switch_now",
]

_LEASE_MS = 15_000
_EXTEND_MS = 5_000
_COMMIT_LEASE_MS = 120_000
_WAIT_S = 10.0
_PAUSE_S = 0.02
_RETRY_S = 0.2

Ends = Mapping[str, Mapping[int, int]]


class SwitchRefused(FlowError):
    code = "HR-FLOW-SWITCH-REFUSED"


def covers(
    before: Generation, last_before: Batch | None, after: Generation, last: Batch | None, ends: Ends
) -> bool:
    """Whether ``after`` has read at least the events that ``before`` has read.

    If they read different topics for the same input, ``after`` must have read its topic up to ``ends``.
    """
    if last is None:
        return last_before is None
    old_inputs = {source.topic: source for source in before.inputs}
    for source in after.inputs:
        if source.kind != "events":
            continue
        old = old_inputs.get(source.topic)
        read = {int(number): end for number, (_, end) in last.inputs.get(source.log, {}).items()}
        needed: Mapping[int, int]
        if old is not None and old.topic_id == source.topic_id:
            ranges = last_before.inputs.get(old.log, {}) if last_before is not None else {}
            needed = {int(number): end for number, (_, end) in ranges.items()}
        else:
            needed = ends.get(source.log, {})
        if any(read.get(number, source.starts.get(str(number), 0)) < end for number, end in needed.items()):
            return False
    return True


class Comparison:
    """Compares the stable topic with the topic of a generation. Use it as a context manager."""

    def __init__(self, cluster: Cluster, flow: Flow, entry: Entry) -> None:
        self._cluster = cluster
        self._flow = flow
        self._entry = entry
        progress = current(cluster, entry.progress)
        updates = progress is not None and bool(progress.generation.updates)
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-switch-")
        self.difference = Difference(
            cluster,
            flow.writes.name,
            entry.topic,
            only_last=updates or flow.writes.kind == "table",
            path=Path(self._folder.name) / "difference.db",
        )

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.difference.close()
        self._folder.cleanup()

    def report(self, generations: FlowGenerations, operation: SwitchOperation | None = None) -> SwitchReport:
        counts = self.difference.advance(operation.extend if operation else lambda: None)
        old = current(self._cluster, generations.serving_entry.progress)
        new = current(self._cluster, self._entry.progress)
        return SwitchReport(
            self._flow.name,
            generations.serving,
            self._entry.number,
            counts,
            shares_of(old.last if old else None),
            shares_of(new.last if new else None),
            self.difference.samples(),
        )


class SwitchOperation:
    """Use it as a context manager. On exit without ``complete``, the switch is cancelled."""

    def __init__(self, cluster: Cluster, flow: Flow, number: int, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._flow = flow
        self._number = number
        self._clock = clock or SystemClock()
        self._opened: GenerationsWriter | None = None
        self._generations: FlowGenerations | None = None
        self._extended_ms = 0
        self._is_committing = False
        self._ends: Ends = {}
        self._before: Progress | None = None

    def __enter__(self) -> SwitchOperation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the switch unless it is complete. If the log does not respond, another process cancels it later."""
        if self._opened is None:
            return
        try:
            with contextlib.suppress(LogError):
                self.cancel()
        finally:
            self._opened.writer.close()

    # The steps

    @property
    def _writer(self) -> GenerationsWriter:
        assert self._opened is not None, "begin opens the writer"
        return self._opened

    def begin(self) -> None:
        under_way = find_generations(self._cluster, self._flow.writes.name)
        if (
            under_way is not None
            and under_way.switching
            and not is_abandoned(under_way, self._clock.now_ms())
        ):
            raise SwitchUnderWay(self._flow.name, under_way.switching)
        self._opened = GenerationsWriter(self._cluster, self._flow)
        generations = self._opened.read()
        entry, serving = generations.expect(self._number), generations.serving_entry
        if self._number == generations.serving and generations.is_published:
            raise SwitchRefused(
                f"generation {self._number} of flow {self._flow.name} already serves",
                hint="no action is needed",
            )
        after = current(self._cluster, entry.progress)
        before = current(self._cluster, serving.progress)
        if after is None or before is None:
            raise SwitchRefused(
                f"generation {self._number} of flow {self._flow.name} has not begun to derive rows",
                hint=f"run the app with the function that derives it: headrace run {app_argument()}",
            )
        if "realtime" in (after.generation.latency, before.generation.latency):
            raise SwitchRefused(
                f"flow {self._flow.name} is or was a real-time flow: its generations replace each other at once",
                hint=f"rebuild it: headrace flow rebuild {app_argument()} {self._flow.name}",
            )
        self._write(generations)
        if self._number != generations.serving:
            self._fence(serving)
        wait_until_decided(self._cluster, serving.progress)
        self._before = current(self._cluster, serving.progress)
        self._ends = {
            source.log: self._cluster.ends(source.log)
            for source in after.generation.inputs
            if source.kind == "events"
        }

    def is_covered(self, after: Generation, last: Batch | None) -> bool:
        """Whether the new generation has read at least what the serving one had read when the switch began."""
        assert self._before is not None
        return covers(self._before.generation, self._before.last, after, last, self._ends)

    def extend(self) -> None:
        """Show that this process still works on the switch. Call it every few seconds."""
        due = self._clock.now_ms() - self._extended_ms >= _EXTEND_MS
        if due and self._generations is not None and not self._is_committing:
            self._write(self._generations, sealed=self._generations.is_sealed)

    def complete(
        self, comparison: Comparison, limits: SwitchSettings | None, *, accepts_behind: bool = False
    ) -> SwitchReport:
        """Switch. If the difference exceeds ``limits`` (None: no limits), raise ``SwitchRefused``.

        With ``accepts_behind``, the generation may have read less than the serving one.
        """
        assert self._generations is not None, "begin comes first"
        old = self._generations.serving_entry
        entry = self._seal(accepts_behind=accepts_behind)
        report = comparison.report(self._generations, self)
        exceeded = report.exceeded(limits) if limits is not None and not entry.approved else []
        if exceeded:
            raise SwitchRefused(
                f"flow {self._flow.name} stays at generation {old.number}: {'; '.join(exceeded)}",
                detail=report.line(),
                hint="compare the rows, then accept the difference:"
                f" headrace generation switch {app_argument()} {self._flow.name} {entry.number}",
            )
        self._commit(comparison.difference, old, report)
        return report

    def complete_unpublished(self, *, accepts_behind: bool = False) -> None:
        """Switch without the stable topic. Its readers see the rows of the old generation until ``complete``."""
        assert self._generations is not None, "begin comes first"
        if self._generations.serving_entry.topic == self._generations.stable:
            raise SwitchRefused(
                f"generation {self._generations.serving} of flow {self._flow.name} has no topic of its own yet",
                hint=f"run headrace generation switch {app_argument()} {self._flow.name} {self._number}",
            )
        self._seal(accepts_behind=accepts_behind)
        switched = self._generations.switched(0, self._clock.now_ms(), is_published=False)
        self._writer.write(switched)
        self._generations = None

    def cancel(self) -> None:
        if self._generations is not None:
            generations, self._generations = self._generations, None
            self._writer.write(generations.without_switch())

    # Parts of the steps

    def _seal(self, *, accepts_behind: bool) -> Entry:
        """Stop the new generation, and check that it has read enough."""
        assert self._generations is not None
        entry = self._generations.expect(self._number)
        self._write(self._generations, sealed=True)
        self._fence(entry)
        wait_until_decided(self._cluster, entry.progress)
        after = current(self._cluster, entry.progress)
        if not accepts_behind and (after is None or not self.is_covered(after.generation, after.last)):
            raise SwitchRefused(
                f"generation {entry.number} of flow {self._flow.name} has not read all that generation"
                f" {self._generations.serving} has read",
                hint="run the app with the function that derives it, and wait until"
                f" headrace generation list {app_argument()} shows that it is not behind; to serve its older rows"
                " nevertheless, add --behind",
            )
        return entry

    def _write(
        self, generations: FlowGenerations, *, sealed: bool = False, lease_ms: int = _LEASE_MS
    ) -> None:
        self._extended_ms = self._clock.now_ms()
        changed = generations.with_switch(
            self._number, process_name(), self._extended_ms + lease_ms, sealed=sealed
        )
        self._writer.write(changed)
        self._generations = changed

    def _header(self) -> bytes:
        """Return from which generation to which the rows of the stable topic change, for example ``1>2``."""
        assert self._generations is not None
        before = self._generations.serving
        if before == self._number and self._generations.switches:
            before = self._generations.switches[-1].before
        return f"{before}>{self._number}".encode()

    def _fence(self, entry: Entry) -> None:
        """Take the transactional id of a generation from its driver, whose open transaction is aborted."""
        name = f"flow {self._flow.name}"
        TransactionalWriter(self._cluster, transactional_id_of(self._flow, entry), name).close()

    def _commit(self, difference: Difference, old: Entry, report: SwitchReport) -> None:
        assert self._generations is not None
        self._write(self._generations, sealed=True, lease_ms=_COMMIT_LEASE_MS)
        self._is_committing = True
        now_ms, published = self._clock.now_ms(), 0
        writer, stable = self._writer.writer, self._generations.stable
        own_topic = self._generations.switched(0, now_ms).expect(old.number).topic
        if own_topic != old.topic:
            partitions = self._cluster.expect_topic(stable).partitions
            ensure_derived(self._cluster, self._flow.writes, own_topic, partitions)
        writer.begin()
        try:
            if own_topic != old.topic:
                writer.send(difference.stable_rows(own_topic))
            for record in difference.changes(self._header()):
                writer.send_one(record)
                published += 1
            self._writer.send(self._generations.switched(published, now_ms, report=report.to_json()))
            writer.flush()
            writer.commit()
        except BaseException:
            writer.abort(purge=True)
            raise
        self._generations = None


def switch_now(
    cluster: Cluster, flow: Flow, number: int, *, accepts_behind: bool = False, wait_s: float = _WAIT_S
) -> SwitchReport:
    """Switch the flow at the request of an operator, whatever the difference is."""
    generations = generations_of(cluster, flow)
    if generations is None:
        raise GenerationUnknown(flow.name, number, ())
    with Comparison(cluster, flow, generations.expect(number)) as comparison:
        # Read most of the topics before any generation pauses.
        comparison.report(generations)
        with SwitchOperation(cluster, flow, number) as operation:
            operation.begin()
            if not accepts_behind:
                _wait_until_covered(cluster, operation, generations.expect(number), wait_s)
            return operation.complete(comparison, None, accepts_behind=accepts_behind)


def switch_back(
    cluster: Cluster, flow: Flow, number: int, *, accepts_behind: bool = False, wait_s: float = _WAIT_S
) -> None:
    """Let a kept generation serve again, at once. Its driver, or ``publish``, publishes the difference afterwards."""
    generations = generations_of(cluster, flow)
    if generations is None:
        raise GenerationUnknown(flow.name, number, ())
    with SwitchOperation(cluster, flow, number) as operation:
        operation.begin()
        if not accepts_behind:
            _wait_until_covered(cluster, operation, generations.expect(number), wait_s)
        operation.complete_unpublished(accepts_behind=accepts_behind)


def publish(cluster: Cluster, flow: Flow) -> SwitchReport | None:
    """Make the stable topic equal to the serving generation. Returns None if it is, perhaps because the generation's
    driver was faster.
    """
    while True:
        generations = generations_of(cluster, flow)
        if generations is None or generations.is_published:
            return None
        with Comparison(cluster, flow, generations.serving_entry) as comparison:
            comparison.report(generations)
            try:
                with SwitchOperation(cluster, flow, generations.serving) as operation:
                    operation.begin()
                    return operation.complete(comparison, None)
            except (SwitchUnderWay, WriterRefused):
                time.sleep(_RETRY_S)


def _wait_until_covered(cluster: Cluster, operation: SwitchOperation, entry: Entry, wait_s: float) -> None:
    """Wait until the generation has read enough, or until the time is over: then ``complete`` refuses."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        progress = current(cluster, entry.progress)
        if progress is not None and operation.is_covered(progress.generation, progress.last):
            return
        operation.extend()
        time.sleep(_PAUSE_S)
