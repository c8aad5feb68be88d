"""A switch of a flow from the serving generation to another one.

    begin      record the switch, and fence the serving generation: from now on it writes nothing
    covered    wait until the other generation has read at least what the serving one has read, and so have the
               generations upstream that it reads (``headrace.flow.switch.coverage``)
    complete   seal the other generation too, compare the two topics, and commit in one transaction: the difference to
               the stable topic, and the record that the other generation serves
    cancel     record the end of the attempt; the serving generation continues

On the way back to a kept generation, views must not wait until large topics are compared. ``complete_unpublished`` only
records that the generation serves. The difference is published afterwards, with a second operation: a switch from the
generation to itself.

Every step first writes to the log and then fences a driver. A driver reads the record after it opened its transactional
id. So either it was opened before, and is fenced, or it sees the step, and waits.

While the serving generation waits, a thread extends the switch every few seconds, whatever the process works on. Only
the transaction of the commit cannot be interrupted: before it, the switch is extended by the time that its records may
take.

If the process dies before the commit, nothing has changed except that drivers wait. As soon as the switch is abandoned
(``headrace.client.generations_writer.is_abandoned``), one of them cancels it. The dead process may only be slow: then
its transactional id is fenced by that, and its transaction cannot commit.

The first generation writes the stable topic itself. When another generation replaces it, it continues in a topic of its
own. The transaction of the switch copies the rows to that topic, so that the way back can be compared in the same way.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_derived
from headrace.client.errors import LogError
from headrace.client.generations import find_generations, generations_of, transactional_id_of
from headrace.client.generations_writer import (
    TRANSACTION_MS,
    GenerationsWriter,
    is_abandoned,
    process_name,
)
from headrace.client.progress import current, wait_until_decided
from headrace.client.transactional_writer import TransactionalWriter, WriterRefused
from headrace.clock import Clock, SystemClock
from headrace.flow.errors import FlowError, SwitchUnderWay
from headrace.flow.switch.comparison import Comparison
from headrace.flow.switch.coverage import Coverage
from headrace.flow.switch.difference import Difference
from headrace.flow.switch.report import SwitchReport
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, GenerationUnknown
from headrace.model.progress import Batch, Generation
from headrace.settings import SwitchSettings

__all__ = [
    "SwitchOperation",
    "SwitchRefused",
    "expect_ready",
    "publish",
    "switch_back",
    "switch_now",
]

_LEASE_MS = 15_000
_EXTEND_S = 5.0
_COMMIT_MS = 60_000
_RECORDS_PER_MS = 5
"""A commit publishes more records than that, also on a slow machine."""
_WAIT_S = 10.0
_PAUSE_S = 0.02
_RETRY_S = 0.2


class SwitchRefused(FlowError):
    code = "HR-FLOW-SWITCH-REFUSED"


class SwitchOperation:
    """Use it as a context manager. On exit without ``complete``, the switch is cancelled."""

    def __init__(self, cluster: Cluster, flow: Flow, number: int, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._flow = flow
        self._number = number
        self._clock = clock or SystemClock()
        self._opened: GenerationsWriter | None = None
        self._generations: FlowGenerations | None = None
        self._coverage: Coverage | None = None
        self._lock = threading.Lock()
        """Protects the writer and the record, which the thread that extends the switch uses too."""
        self._ended = threading.Event()
        self._extender = threading.Thread(target=self._extend, name=f"switch of {flow.name}", daemon=True)
        self._lost: LogError | None = None

    def __enter__(self) -> SwitchOperation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the switch unless it is complete. If the log does not respond, another process cancels it later."""
        self._ended.set()
        if self._opened is None:
            return
        if self._extender.is_alive():
            self._extender.join()
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
        _expect_no_switch(self._cluster, self._flow, self._clock)
        self._opened = GenerationsWriter(self._cluster, self._flow)
        generations = self._opened.read()
        after = _expect_switchable(self._cluster, self._flow, generations, self._number)
        serving = generations.serving_entry
        with self._lock:
            self._write(generations)
        self._extender.start()
        if self._number != generations.serving:
            self._fence(serving)
        wait_until_decided(self._cluster, serving.progress)
        before = current(self._cluster, serving.progress)
        assert before is not None, "_expect_switchable read it"
        self._coverage = Coverage(self._cluster, before, after)

    def is_covered(self, last: Batch | None) -> bool:
        """Whether the new generation, with this last batch, has read at least what the serving one had read when the
        switch began.
        """
        assert self._coverage is not None, "begin comes first"
        return self._coverage.is_reached(last)

    def check(self) -> None:
        """Raise ``LogError`` if this process could not extend the switch, so another one may have cancelled it."""
        if self._lost is not None:
            raise self._lost

    def complete(
        self, comparison: Comparison, limits: SwitchSettings | None, *, accepts_behind: bool = False
    ) -> SwitchReport:
        """Switch. If the difference exceeds ``limits`` (None: no limits), raise ``SwitchRefused``.

        With ``accepts_behind``, the generation may have read less than the serving one.
        """
        assert self._generations is not None, "begin comes first"
        old = self._generations.serving_entry
        entry = self._seal(accepts_behind=accepts_behind)
        report = comparison.report(self._generations)
        exceeded = report.exceeded(limits) if limits is not None else []
        if exceeded:
            raise SwitchRefused(
                f"flow {self._flow.name} stays at generation {old.number}: {'; '.join(exceeded)}",
                detail=report.line(),
                hint="compare the rows, then switch nevertheless:"
                f" headrace generation switch {app_argument()} {self._flow.name} {entry.number}",
            )
        report = comparison.with_samples(report)
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
        with self._lock:
            switched = self._generations.switched(0, self._clock.now_ms(), is_published=False)
            self._writer.write(switched)
            self._generations = None

    def cancel(self) -> None:
        with self._lock:
            if self._generations is not None:
                generations, self._generations = self._generations, None
                self._writer.write(generations.without_switch())

    # Parts of the steps

    def _seal(self, *, accepts_behind: bool) -> Entry:
        """Stop the new generation, and check that it has read enough."""
        assert self._generations is not None
        entry = self._generations.expect(self._number)
        with self._lock:
            self._write(self._generations, sealed=True)
        self._fence(entry)
        wait_until_decided(self._cluster, entry.progress)
        after = current(self._cluster, entry.progress)
        if not accepts_behind and (after is None or not self.is_covered(after.last)):
            raise _behind(self._flow, entry.number, self._generations.serving)
        return entry

    def _write(
        self, generations: FlowGenerations, *, sealed: bool = False, lease_ms: int = _LEASE_MS
    ) -> None:
        until_ms = self._clock.now_ms() + lease_ms
        changed = generations.with_switch(self._number, process_name(), until_ms, sealed=sealed)
        self._writer.write(changed)
        self._generations = changed

    def _extend(self) -> None:
        """Show that this process still works on the switch."""
        while not self._ended.wait(_EXTEND_S):
            try:
                with self._lock:
                    if self._generations is not None:
                        self._write(self._generations, sealed=self._generations.is_sealed)
            except LogError as error:
                self._lost = error
                return

    def _header(self) -> bytes:
        """Return from which generation to which the rows of the stable topic change, for example ``1>2``."""
        assert self._generations is not None
        return f"{self._generations.published_number}>{self._number}".encode()

    def _fence(self, entry: Entry) -> None:
        """Take the transactional id of a generation from its driver, whose open transaction is aborted."""
        name = f"flow {self._flow.name}"
        TransactionalWriter(self._cluster, transactional_id_of(self._flow, entry), name).close()

    def _commit(self, difference: Difference, old: Entry, report: SwitchReport) -> None:
        with self._lock:
            assert self._generations is not None
            stable, now_ms = self._generations.stable, self._clock.now_ms()
            own_topic = self._generations.switched(0, now_ms).expect(old.number).topic
            is_first = own_topic != old.topic
            published = difference.change_count
            records = published + (difference.stable_count if is_first else 0)
            lease_ms = min(TRANSACTION_MS, _COMMIT_MS + records // _RECORDS_PER_MS)
            self._write(self._generations, sealed=True, lease_ms=lease_ms)
            if is_first:
                partitions = self._cluster.expect_topic(stable).partitions
                ensure_derived(self._cluster, self._flow.writes, own_topic, partitions)
            writer = self._writer.writer
            writer.begin()
            try:
                if is_first:
                    writer.send(difference.stable_rows(own_topic))
                for record in difference.changes(self._header()):
                    writer.send_one(record)
                # The record comes last, because a transaction that is open in this topic delays all flows.
                writer.flush()
                self._writer.send(self._generations.switched(published, now_ms, report=report.to_json()))
                end = self._writer.commit()
            except BaseException:
                writer.abort(purge=True)
                raise
            self._generations = None
            self._writer.wait_until_visible(end)


def _expect_no_switch(cluster: Cluster, flow: Flow, clock: Clock) -> None:
    under_way = find_generations(cluster, flow.writes.name)
    if under_way is not None and under_way.switching and not is_abandoned(under_way, clock.now_ms()):
        raise SwitchUnderWay(flow.name, under_way.switching)


def _expect_switchable(cluster: Cluster, flow: Flow, generations: FlowGenerations, number: int) -> Generation:
    """Return the record of the generation. Raise ``SwitchRefused`` if the flow can never switch to it."""
    entry, serving = generations.expect(number), generations.serving_entry
    if number == generations.serving and generations.is_published:
        raise SwitchRefused(
            f"generation {number} of flow {flow.name} already serves", hint="no action is needed"
        )
    after, before = current(cluster, entry.progress), current(cluster, serving.progress)
    if after is None or before is None:
        raise SwitchRefused(
            f"generation {number} of flow {flow.name} has no progress record yet",
            hint=f"run the app with the function that derives it: headrace run {app_argument()}",
        )
    if "realtime" in (after.generation.latency, before.generation.latency):
        raise SwitchRefused(
            f"flow {flow.name} is or was a real-time flow: its generations replace each other at once",
            hint=f"rebuild it: headrace flow rebuild {app_argument()} {flow.name}",
        )
    return after.generation


def _behind(flow: Flow, number: int, serving: int) -> SwitchRefused:
    return SwitchRefused(
        f"generation {number} of flow {flow.name} has not read all that generation {serving} has read",
        hint="run the app with the function that derives it, and wait until"
        f" headrace generation list {app_argument()} shows that neither it nor a generation upstream is behind; to"
        " serve its older rows nevertheless, add --behind",
    )


def expect_ready(
    cluster: Cluster, flow: Flow, number: int, *, accepts_behind: bool = False, wait_s: float = _WAIT_S
) -> None:
    """Raise an error if the flow cannot switch to the generation now. This changes nothing and pauses nothing."""
    _expect_no_switch(cluster, flow, SystemClock())
    generations = generations_of(cluster, flow)
    if generations is None:
        raise GenerationUnknown(flow.name, number, ())
    after = _expect_switchable(cluster, flow, generations, number)
    before = current(cluster, generations.serving_entry.progress)
    if accepts_behind or before is None:
        return
    coverage = Coverage(cluster, before, after)
    deadline = time.monotonic() + wait_s
    progress_topic = generations.expect(number).progress
    while True:
        progress = current(cluster, progress_topic)
        if progress is not None and coverage.is_reached(progress.last):
            return
        if time.monotonic() >= deadline:
            raise _behind(flow, number, generations.serving)
        time.sleep(_RETRY_S)


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
        if progress is not None and operation.is_covered(progress.last):
            return
        operation.check()
        time.sleep(_PAUSE_S)
