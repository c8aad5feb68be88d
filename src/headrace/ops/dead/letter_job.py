"""A job writes letters of a dead-letter topic back, or dismisses them, in batches, until it is done or cancelled.

Each batch is one transaction. If a job ends early, its complete batches are written, with the states of their letters.
If the same job is started again, it continues after these batches.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.rejection import LetterState
from headrace.ops.dead.dead_topic import DeadTopic
from headrace.ops.dead.errors import CorrectionRefused, ReplayStopped, TooManyLetters
from headrace.ops.dead.letter import RecordId
from headrace.ops.dead.letter_index import LetterIndex, LetterLocation
from headrace.ops.dead.letters import letters_at
from headrace.ops.dead.replay_rules import ReplayRules, Result, skip_reason
from headrace.ops.dead.state_writer import StateChange, StateWriter

__all__ = ["NAMED_MAX", "JobRequest", "LetterJob"]

NAMED_MAX = 1_000
_BATCH_LETTERS = 100
_RESULTS_MAX = 1_000


class JobRequest(msgspec.Struct, frozen=True):
    coordinates: Sequence[tuple[int, int]] | None = None
    """Partition and offset of each letter; None for all letters."""
    dry_run: bool = False
    force: bool = False
    """Whether to include letters that are not open."""
    per_s: float | None = None
    """The maximum number of letters per second."""
    dismissal: str = ""
    """Why the letters are dismissed. Empty: they are written back."""
    value: bytes | None = None
    """The corrected value of the only letter."""

    @property
    def action(self) -> Literal["replay", "correct", "dismiss"]:
        if self.dismissal:
            return "dismiss"
        return "replay" if self.value is None else "correct"


class LetterJob:
    """One thread calls ``run``. Any thread can call the other methods."""

    def __init__(
        self,
        cluster: Cluster,
        app: App,
        index: LetterIndex,
        topic: DeadTopic,
        request: JobRequest,
        clock: Clock,
        future_us: int,
    ) -> None:
        named = request.coordinates
        if named is not None and len(named) > NAMED_MAX:
            raise TooManyLetters(
                f"{len(named):,} letters are named; a request accepts at most {NAMED_MAX:,}",
                hint="handle all letters, or name fewer letters",
            )
        if request.value is not None and (named is None or len(set(named)) != 1):
            raise CorrectionRefused("a corrected value needs exactly one letter", hint="name one letter")
        self.id = secrets.token_hex(8)
        self.topic = topic
        self.request = request
        self.state: Literal["running", "done", "cancelled", "failed"] = "running"
        self.error: HeadraceError | None = None
        self.began_ms = clock.now_ms()
        self.ended_ms: int | None = None
        self.done = 0
        """Letters that were checked or handled."""
        self.total = len(named or ())
        self.states: Counter[str] = Counter()
        self.unfit = 0
        self.repeats = 0
        """Letters whose copy a flow would count a second time."""
        self.bytes = 0
        self.to: Counter[str] = Counter()
        """By topic, the number of records that were written, or would be written by a dry run."""
        self.results: list[Result] = []
        """The results of the first letters, up to a limit."""
        self.ended = threading.Event()
        self._cluster = cluster
        self._app = app
        self._index = index
        self._clock = clock
        self._future_us = future_us
        self._stop = threading.Event()
        self._change = StateChange(self.id, request.force, request.dismissal, request.value)

    def cancel(self) -> None:
        """Stop after the current batch."""
        self._stop.set()

    def readers(self) -> dict[str, list[str]]:
        """Return the readers of each topic to which letters are written."""
        rules = ReplayRules(self._cluster, self._app, self._future_us)
        return {topic: rules.readers(topic) for topic in sorted(self.to)}

    def summary(self) -> list[str]:
        """Describe the result in lines of text."""
        lines = []
        for topic, readers in self.readers().items():
            count, names = self.to[topic], ", ".join(readers) or "no flow or view of the app"
            verb = "would be" if self.request.dry_run else _were(count)
            lines.append(f"{count:,} {verb} written to topic {topic}, read by: {names}")
        if self.request.dismissal and (count := self.states["ready"] + self.states["dismissed"]):
            lines.append(f"{count:,} {'would be' if self.request.dry_run else _were(count)} dismissed")
        if self.unfit:
            lines.append(
                "1 of these would be rejected again"
                if self.unfit == 1
                else f"{self.unfit:,} of these would be rejected again"
            )
        if self.repeats:
            lines.append(
                f"{self.repeats:,} of these would be counted twice by a flow that accepted the original"
            )
        if skipped := self.states["skipped"]:
            lines.append(f"{skipped:,} {_were(skipped)} skipped, not open; the results give the states")
        if cannot := self.states["cannot"]:
            lines.append(f"{cannot:,} cannot be written back; the results give the reasons")
        if self.state == "cancelled":
            lines.append("cancelled; start the same command again to continue")
        return lines or ["no letters to handle"]

    def run(self) -> None:
        writer = StateWriter(self._cluster, self._app, self._index, self._clock, self._future_us, self._stop)
        state: Literal["done", "cancelled", "failed"] = "done"
        try:
            self._index.catch_up()
            for batch in self._batches():
                if self._stop.is_set():
                    state = "cancelled"
                    break
                self._handle(writer, batch)
        except HeadraceError as error:
            state, self.error = "failed", error
        except BaseException as error:
            state = "failed"
            self.error = ReplayStopped(
                f"the job failed: {type(error).__name__}: {error}",
                hint="start the same command again: letters that were handled are not handled twice",
            )
            raise
        finally:
            writer.release()
            if state == "done":
                self.total = self.done
            self.ended_ms = self._clock.now_ms()
            self.state = state
            self.ended.set()

    def _handle(self, writer: StateWriter, batch: list[LetterLocation]) -> None:
        """Handle the letters of a batch. Letters that are not open are not read from the log."""
        skipped = [] if self.request.force else [item for item in batch if item.state is not LetterState.OPEN]
        to_read = [item for item in batch if item not in skipped]
        results = [self._skipped(item) for item in skipped]
        if to_read:
            coordinates = [(item.partition, item.offset) for item in to_read]
            letters = [*letters_at(self._cluster, self.topic.name, coordinates)]
            started_s = self._clock.steady()
            results += (writer.check if self.request.dry_run else writer.write)(letters, self._change)
            if self.request.per_s is not None and not self.request.dry_run:
                handled = sum(result.state in ("written", "dismissed") for result in results)
                self._stop.wait(max(0.0, handled / self.request.per_s - (self._clock.steady() - started_s)))
        self._add(sorted(results, key=lambda result: result.letter))

    def _skipped(self, item: LetterLocation) -> Result:
        info = self._index.find(item.id)
        to = info.record.to if info is not None and info.record is not None else None
        record_id = RecordId(self.topic.name, item.partition, item.offset)
        return Result(record_id, "skipped", to=to, why=skip_reason(info, force=False))

    def _add(self, results: list[Result]) -> None:
        for result in results:
            self.states[result.state] += 1
            if result.to is not None and result.state in ("ready", "written"):
                self.unfit += bool(result.unfit)
                self.repeats += any(reader.outcome == "repeats" for reader in result.readers)
                self.bytes += result.bytes
                self.to[result.to.topic] += 1
        self.results += results[: _RESULTS_MAX - len(self.results)]
        self.done += len(results)

    def _batches(self) -> Iterator[list[LetterLocation]]:
        """Group the letters into batches. At a low rate, a batch takes about a second, so a cancel ends soon."""
        per_s = self.request.per_s
        size = _BATCH_LETTERS if per_s is None else max(1, min(_BATCH_LETTERS, int(per_s)))
        named = self.request.coordinates
        if named is not None:
            locations = [LetterLocation(*item, b"", LetterState.OPEN) for item in sorted(set(named))]
            yield from (locations[begin : begin + size] for begin in range(0, len(locations), size))
            return
        if self._cluster.topic(self.topic.name) is None:
            return
        # Later letters can be records that this job wrote and that were rejected again.
        ends = self._cluster.ends(self.topic.name)
        self.total = sum(self._index.counts().get(self.topic.name, {}).values())
        after = (-1, -1)
        while page := self._index.letters_after(self.topic.name, after, size):
            after = (page[-1].partition, page[-1].offset)
            if batch := [item for item in page if item.offset < ends.get(item.partition, 0)]:
                yield batch


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
