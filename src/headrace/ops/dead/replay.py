"""A replay writes some or all letters of a dead-letter topic back, in batches, until it is done or cancelled.

Each batch is one transaction. If a replay ends early, its complete batches are written and marked. If the same replay
is started again, it continues after these batches.
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
from headrace.ops.dead.dead_topic import DeadTopic
from headrace.ops.dead.errors import ReplayStopped, TooManyLetters
from headrace.ops.dead.letter import Letter
from headrace.ops.dead.letters import letters_at, letters_between
from headrace.ops.dead.marks import Marks
from headrace.ops.dead.replay_rules import ReplayRules, Result
from headrace.ops.dead.replayer import Replayer

__all__ = ["NAMED_MAX", "Replay", "ReplayRequest"]

NAMED_MAX = 1_000
_BATCH_LETTERS = 100
_BATCH_BYTES = 4 * 1024 * 1024
_RESULTS_MAX = 1_000


class ReplayRequest(msgspec.Struct, frozen=True):
    coordinates: Sequence[tuple[int, int]] | None = None
    """Partition and offset of each letter; None for all letters."""
    dry_run: bool = False
    again: bool = False
    """Whether to include letters that were written back before."""
    per_s: float | None = None
    """The maximum number of letters per second."""


class Replay:
    """One thread calls ``run``. Any thread can call the other methods."""

    def __init__(
        self, cluster: Cluster, app: App, marks: Marks, topic: DeadTopic, request: ReplayRequest, clock: Clock
    ) -> None:
        if request.coordinates is not None and len(request.coordinates) > NAMED_MAX:
            raise TooManyLetters(
                f"{len(request.coordinates):,} letters are named; a replay accepts at most {NAMED_MAX:,}",
                hint="replay all letters, or name fewer letters",
            )
        self.id = secrets.token_hex(8)
        self.topic = topic
        self.request = request
        self.state: Literal["running", "done", "cancelled", "failed"] = "running"
        self.error: HeadraceError | None = None
        self.began_ms = clock.now_ms()
        self.ended_ms: int | None = None
        self.done = 0
        """Letters that were checked or written."""
        self.total = len(request.coordinates or ())
        """The number of letters to check or write. It is approximate, because it includes transaction markers after the
        last letter that was read.
        """
        self.states: Counter[str] = Counter()
        self.unfit = 0
        self.bytes = 0
        self.to: Counter[str] = Counter()
        """By topic, the number of records that were written, or would be written by a dry run."""
        self.results: list[Result] = []
        """The results of the first letters, up to a limit."""
        self.ended = threading.Event()
        self._cluster = cluster
        self._app = app
        self._marks = marks
        self._clock = clock
        self._stop = threading.Event()

    def cancel(self) -> None:
        """Stop after the current batch."""
        self._stop.set()

    def readers(self) -> dict[str, list[str]]:
        """Return the readers of each topic to which letters are written."""
        rules = ReplayRules(self._cluster, self._app)
        return {topic: rules.readers(topic) for topic in sorted(self.to)}

    def summary(self) -> list[str]:
        """Describe the result in lines of text."""
        lines = []
        for topic, readers in self.readers().items():
            count, names = self.to[topic], ", ".join(readers) or "no flow or view of the app"
            verb = "would be" if self.request.dry_run else _were(count)
            lines.append(f"{count:,} {verb} written to topic {topic}, read by: {names}")
        if self.unfit:
            lines.append(
                "1 of these still does not match the current schema and becomes a dead letter again"
                if self.unfit == 1
                else f"{self.unfit:,} of these still do not match the current schema and become dead letters again"
            )
        if already := self.states["already"]:
            lines.append(f"{already:,} {_were(already)} written back before and skipped now")
        if cannot := self.states["cannot"]:
            lines.append(f"{cannot:,} cannot be written back; the results give the reasons")
        if self.state == "cancelled":
            lines.append("cancelled; start the same replay again to continue")
        return lines or ["no letters to write back"]

    def run(self) -> None:
        replayer = Replayer(self._cluster, self._app, self._marks, self._clock, self._stop)
        state: Literal["done", "cancelled", "failed"] = "done"
        try:
            if self.request.dry_run:
                self._marks.catch_up()
            for batch in self._batches():
                if self._stop.is_set():
                    state = "cancelled"
                    break
                self._add(self._results(replayer, batch))
        except HeadraceError as error:
            state, self.error = "failed", error
        except BaseException as error:
            state = "failed"
            self.error = ReplayStopped(
                f"the replay failed: {type(error).__name__}: {error}",
                hint="start the replay again: letters that were written are marked and are not written twice",
            )
            raise
        finally:
            replayer.release()
            if state == "done":
                self.total = self.done
            self.ended_ms = self._clock.now_ms()
            self.state = state
            self.ended.set()

    def _results(self, replayer: Replayer, batch: list[Letter]) -> list[Result]:
        if self.request.dry_run:
            return replayer.check(batch, again=self.request.again)
        started_s = self._clock.steady()
        results = replayer.replay(batch, self.id, again=self.request.again)
        if self.request.per_s is not None:
            written = sum(result.state == "written" for result in results)
            self._stop.wait(max(0.0, written / self.request.per_s - (self._clock.steady() - started_s)))
        return results

    def _add(self, results: list[Result]) -> None:
        for result in results:
            self.states[result.state] += 1
            if result.state in ("ready", "written"):
                self.unfit += bool(result.unfit)
                self.bytes += result.bytes
                self.to[result.to.topic if result.to else ""] += 1
        self.results += results[: _RESULTS_MAX - len(self.results)]
        self.done += len(results)

    def _batches(self) -> Iterator[list[Letter]]:
        """Group the letters into batches. At a low rate, a batch takes about a second, so a cancel ends soon."""
        letters_max = (
            _BATCH_LETTERS
            if self.request.per_s is None
            else max(1, min(_BATCH_LETTERS, int(self.request.per_s)))
        )
        batch: list[Letter] = []
        size = 0
        for letter in self._letters():
            batch.append(letter)
            size += len(letter.key or b"") + len(letter.value or b"")
            if len(batch) >= letters_max or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _letters(self) -> Iterator[Letter]:
        name = self.topic.name
        if self.request.coordinates is not None:
            yield from letters_at(self._cluster, name, self.request.coordinates)
            return
        if self._cluster.topic(name) is None:
            return
        # Read only to the current ends. Later letters can be records that this replay wrote and that failed
        # again.
        starts, ends = self._cluster.starts(name), self._cluster.ends(name)
        next_offsets = dict(starts)
        for letter_count, letter in enumerate(
            letters_between(
                self._cluster, name, {number: (starts[number], end) for number, end in ends.items()}
            ),
            1,
        ):
            next_offsets[letter.record_id.partition] = letter.record_id.offset + 1
            self.total = letter_count + sum(ends[number] - offset for number, offset in next_offsets.items())
            yield letter


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
