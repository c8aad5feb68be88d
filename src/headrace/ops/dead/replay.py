"""A replay that was asked for: some letters or all, in pieces, with its progress, until it is done or called off.

Each piece is written whole or not at all; what ends the replay in between leaves the pieces before it written and
noted. Asking for the same again goes on behind them.
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
from headrace.ops.dead.judge import Judge, Result
from headrace.ops.dead.letter import Letter
from headrace.ops.dead.letters import letters_at, letters_between
from headrace.ops.dead.marks import Marks
from headrace.ops.dead.replayer import Replayer

__all__ = ["NAMED_MAX", "Replay", "Wanted"]

NAMED_MAX = 1_000
_PIECE_LETTERS = 100
_PIECE_BYTES = 4 * 1024 * 1024
_RESULTS_MAX = 1_000


class Wanted(msgspec.Struct, frozen=True):
    places: Sequence[tuple[int, int]] | None = None
    """Partition and offset of each letter; None for all."""
    dry_run: bool = False
    again: bool = False
    """Whether letters that were written back before are, too."""
    per_s: float | None = None
    """At most so many letters."""


class Replay:
    """``run`` does it, in one thread; everything else is for any."""

    def __init__(
        self, cluster: Cluster, app: App, marks: Marks, topic: DeadTopic, wanted: Wanted, clock: Clock
    ) -> None:
        if wanted.places is not None and len(wanted.places) > NAMED_MAX:
            raise TooManyLetters(
                f"{len(wanted.places):,} letters are named, and {NAMED_MAX:,} is all at a time",
                hint="replay all of them, or some at a time",
            )
        self.id = secrets.token_hex(8)
        self.topic = topic
        self.wanted = wanted
        self.state: Literal["running", "done", "cancelled", "failed"] = "running"
        self.error: HeadraceError | None = None
        self.began_ms = clock.now_ms()
        self.ended_ms: int | None = None
        self.done = 0
        """Letters that were looked at, or written."""
        self.of = len(wanted.places or ())
        """About as many as there are; ends of transactions that were not passed yet are counted as well."""
        self.states: Counter[str] = Counter()
        self.unfit = 0
        self.bytes = 0
        self.to: Counter[str] = Counter()
        """By topic, the records that were written, or would be."""
        self.results: list[Result] = []
        """The first ones."""
        self.ended = threading.Event()
        self._cluster = cluster
        self._app = app
        self._marks = marks
        self._clock = clock
        self._stop = threading.Event()

    def cancel(self) -> None:
        """The piece under way is brought to its end."""
        self._stop.set()

    def readers(self) -> dict[str, list[str]]:
        """Who gets what is written, by topic."""
        judge = Judge(self._cluster, self._app)
        return {topic: judge.readers(topic) for topic in sorted(self.to)}

    def words(self) -> list[str]:
        """What happened, or would, for a person."""
        lines = []
        for topic, readers in self.readers().items():
            count, who = self.to[topic], ", ".join(readers) or "nobody of the app"
            said = "would be" if self.wanted.dry_run else _were(count)
            lines.append(f"{count:,} {said} written to topic {topic}, for all who read there: {who}")
        if self.unfit:
            verbs = "does not fit" if self.unfit == 1 else "do not fit"
            lines.append(f"{self.unfit:,} of these {verbs} the schema today either: a dead letter again")
        if already := self.states["already"]:
            lines.append(f"{already:,} {_were(already)} written back before, and left as it was")
        if cannot := self.states["cannot"]:
            lines.append(f"{cannot:,} cannot be written back; the results say why")
        if self.state == "cancelled":
            lines.append("it was called off; the same again goes on where it ended")
        return lines or ["there are no letters to write back"]

    def run(self) -> None:
        replayer = Replayer(self._cluster, self._app, self._marks, self._clock, self._stop)
        state: Literal["done", "cancelled", "failed"] = "done"
        try:
            if self.wanted.dry_run:
                self._marks.catch_up()
            for piece in self._pieces():
                if self._stop.is_set():
                    state = "cancelled"
                    break
                self._take(self._results(replayer, piece))
        except HeadraceError as error:
            state, self.error = "failed", error
        except BaseException as error:
            state = "failed"
            self.error = ReplayStopped(
                f"it broke: {type(error).__name__}: {error}",
                hint="replay them again: what was written is noted, and is not written twice",
            )
            raise
        finally:
            replayer.let_go()
            if state == "done":
                self.of = self.done
            self.ended_ms = self._clock.now_ms()
            self.state = state
            self.ended.set()

    def _results(self, replayer: Replayer, piece: list[Letter]) -> list[Result]:
        if self.wanted.dry_run:
            return replayer.look(piece, again=self.wanted.again)
        began = self._clock.steady()
        found = replayer.replay(piece, self.id, again=self.wanted.again)
        if self.wanted.per_s is not None:
            written = sum(one.state == "written" for one in found)
            self._stop.wait(max(0.0, written / self.wanted.per_s - (self._clock.steady() - began)))
        return found

    def _take(self, results: list[Result]) -> None:
        for one in results:
            self.states[one.state] += 1
            if one.state in ("ready", "written"):
                self.unfit += bool(one.unfit)
                self.bytes += one.bytes
                self.to[one.to.topic if one.to else ""] += 1
        self.results += results[: _RESULTS_MAX - len(self.results)]
        self.done += len(results)

    def _pieces(self) -> Iterator[list[Letter]]:
        """At a slow rate a piece is what a second takes, so that whoever calls it off does not wait."""
        most = (
            _PIECE_LETTERS
            if self.wanted.per_s is None
            else max(1, min(_PIECE_LETTERS, int(self.wanted.per_s)))
        )
        held: list[Letter] = []
        size = 0
        for letter in self._letters():
            held.append(letter)
            size += len(letter.key or b"") + len(letter.value or b"")
            if len(held) >= most or size >= _PIECE_BYTES:
                yield held
                held, size = [], 0
        if held:
            yield held

    def _letters(self) -> Iterator[Letter]:
        name = self.topic.name
        if self.wanted.places is not None:
            yield from letters_at(self._cluster, name, self.wanted.places)
            return
        if self._cluster.topic(name) is None:
            return
        # What comes meanwhile may be what was just written, dead again.
        starts, ends = self._cluster.starts(name), self._cluster.ends(name)
        at = dict(starts)
        for seen, letter in enumerate(
            letters_between(self._cluster, name, {one: (starts[one], end) for one, end in ends.items()}), 1
        ):
            at[letter.place.partition] = letter.place.offset + 1
            self.of = seen + sum(ends[one] - place for one, place in at.items())
            yield letter


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
