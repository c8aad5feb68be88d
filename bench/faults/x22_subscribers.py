"""X22, slow and many, by WebSocket: a thousand who follow a view and do not read, beside some who do.

A third of them does not read for a while, and then on: what they have not taken is told as fewer, larger steps. A third
does not read until everything was written, which is more than is remembered for them: they are sent away, with a last
message, a close frame, and where to go on from. The rest never reads again, and is dropped when it has taken nothing
for half a minute.

What must hold: those who read get every batch once, in order, in one connection; so do those who are late, in fewer
steps; whoever was sent away or dropped comes again with its cursor and has the view's rows at the end; a subscriber
costs less than 64 KB, whether it reads or not, and all of it is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.faults.flow_by_hand import Change, FlowByHand
from bench.faults.follower_process import FollowerProcess
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.serve_process import ServeProcess
from bench.faults.slow_clients import allow_files
from bench.faults.socket_reader import SocketReader
from bench.faults.workplace import workplace
from headrace.client.cluster import Cluster

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X22"
UNPROTECTED = {"back-pressure": r"who do not read cost", "forgetting": r"was not sent away as promised"}
RUNS = 3

_NAME = "derived"
_APP = "tests.serve.derived:app"
_KEYS = 3
_NOTE = "x" * 15_000
_HISTORY_BYTES = 4_000_000
_MANY = 1_000
_KB_EACH_MAX = 64
_MB_FEW_MAX = 96
"""For fewer than many, of whom each would have to pay for what all share."""
_FIRST = 40
"""Subscribers that come before anything is counted. One of them stays, so that what reads the log and the store for
all stays open.
"""
_FILES_SPARE = 20
"""A busy moment may open more readers of the log and the store for all: fewer files than subscribers that left."""
_PART = 30
"""Batches that the late ones sleep through: more than the kernel takes for them, less than is remembered."""
_PARTS = 5
_SILENT_S = 30
_DROPPED_S = _SILENT_S + 20
_WAIT_S = 240.0
_COME_AGAIN = (1012, 4000, 4429, 4503)


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "back-pressure",
    slow: int = _MANY,
    good: int = 50,
    waits_for_dropped: bool = True,
) -> Outcome:
    """A share of it need not wait until those who never read are dropped."""
    outcome = Outcome(FAULT, seed)
    if not protected:
        slow, good, waits_for_dropped = 60, 3, False
    allow_files(slow + good + 1_000)
    settings = {
        "subscribers": slow + good + _FIRST + 10,
        "connections": slow + good + _FIRST + 10,
        "frame_ms": 20,
        "history_bytes": _HISTORY_BYTES,
    }
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        flow = FlowByHand(Cluster(broker.bootstrap), _NAME, partitions=1)
        flow.begin()
        flow.batch([("k0", {"product": "k0", "amount": 0, "note": None})])
        server = ServeProcess(
            home / "app", _APP, broker.bootstrap, settings, without="" if protected else without
        )
        follower = _follow(broker.bootstrap, home / "app")
        server.start()
        try:
            scene = _Scene(server, flow, random.Random(seed), outcome)
            asyncio.run(scene.play(slow, good, waits_for_dropped))
            outcome.peak_rss_mb = server.rss_mb("VmHWM")
        finally:
            follower.kill()
            server.kill()
        outcome.problems += [f"the server did not foresee:\n{one}" for one in server.faults()]
        outcome.problems += broker.traces()
    return outcome


def _follow(bootstrap: str, data: Path) -> FollowerProcess:
    data.mkdir(parents=True, exist_ok=True)
    follower = FollowerProcess(bootstrap, "sqlite", str(data / "shop.db"), _NAME)
    follower.wait_for("applied", 0)
    return follower


class _Scene:
    def __init__(self, server: ServeProcess, flow: FlowByHand, rng: random.Random, outcome: Outcome) -> None:
        self._server = server
        self._flow = flow
        self._rng = rng
        self._outcome = outcome
        self._news = asyncio.Event()

    async def play(self, slow: int, good: int, waits_for_dropped: bool) -> None:
        outcome, server = self._outcome, self._server
        left = await self._first_come()
        files, rss_mb = server.files(), server.rss_mb()
        readers = [await self._open() for _ in range(good)]
        crowd = [await self._open(narrow=True) for _ in range(slow)]
        await self._until(lambda: all(one.batch == 0 for one in (*readers, *crowd)), "everybody's rows")
        idle_kb = (server.rss_mb() - rss_mb) * 1024 / (slow + good)
        outcome.figures["kb_idle"] = idle_kb
        if slow >= _MANY and idle_kb > _KB_EACH_MAX:
            self._object(f"{slow + good} subscribers that do nothing cost {idle_kb:.0f} KB each")
        self._rng.shuffle(crowd)
        late, stuck, never = crowd[::3], crowd[1::3], crowd[2::3]
        for one in crowd:
            one.pause()
        asleep = time.monotonic()
        await self._write_on(late, readers)
        await self._until(lambda: all(one.batch == self._last for one in readers), "those who read")
        await self._until(lambda: all(one.batch == self._last for one in late), "those who were late")
        grown_mb = server.rss_mb("VmHWM") - rss_mb
        outcome.figures["slow_mb"] = grown_mb
        most_mb = (slow + good) * _KB_EACH_MAX / 1024 if slow >= _MANY else _MB_FEW_MAX
        if grown_mb > most_mb:
            self._object(f"{slow} who do not read cost {grown_mb:.0f} MB, and {most_mb:.0f} would be fine")
        self._judge_readers(readers, late)
        if outcome.problems:
            return
        for one in stuck:
            one.read_on()
        await self._until(
            lambda: all(one.is_closed or one.batch == self._last for one in stuck),
            "those who did not read",
            stuck,
        )
        # On a machine that is too busy all was not written in half a minute, and they are dropped before.
        self._judge_stuck(stuck, may_be_dropped=time.monotonic() - asleep > _SILENT_S)
        if outcome.problems:
            # Who was not sent away is still there, and leaves no place for who comes again.
            return
        if waits_for_dropped:
            await asyncio.sleep(max(0.0, asleep + _DROPPED_S - time.monotonic()))
            for one in never:
                one.read_on()
            await self._until(lambda: all(one.is_closed for one in never), "those who were dropped", never)
            outcome.hits += sum(one.bye is None for one in never)
        else:
            for one in never:
                one.end()
        await self._come_again([*stuck, *never])
        for one in (*readers, *late):
            one.end()
        await self._until(
            lambda: server.files() <= files + _FILES_SPARE, f"its open files to be {files} again"
        )
        left.end()

    async def _first_come(self) -> SocketReader:
        """The one who is left of those who came first."""
        came = [await self._open() for _ in range(_FIRST)]
        await self._until(
            lambda: all(one.batch == 0 for one in came), "the rows of those who came first", came
        )
        files = self._server.files()
        for one in came[1:]:
            one.end()
        await self._until(
            lambda: self._server.files() <= files - len(came) + 1 + _FILES_SPARE, "them to be gone"
        )
        return came[0]

    @property
    def _last(self) -> int:
        return self._flow.batches - 1

    async def _open(self, known: SocketReader | None = None, *, narrow: bool = False) -> SocketReader:
        return await SocketReader.open(self._server.port, _NAME, self._news.set, known=known, narrow=narrow)

    async def _write_on(self, late: Sequence[SocketReader], readers: Sequence[SocketReader]) -> None:
        """Who is late reads once in a while, until it has what there is then. Each batch is told by itself: what is
        told together takes less room, and all of it might be remembered.
        """
        for _ in range(_PARTS):
            for _ in range(_PART):
                await asyncio.to_thread(self._flow.batch, self._changes())
                await self._until(lambda: readers[0].batch == self._last, "the batch", readers)
            for one in late:
                one.read_on()
            await self._until(
                lambda: all(one.batch == self._last for one in late), "those who are late", late
            )
            for one in late:
                one.pause()
        for one in late:
            one.read_on()

    def _changes(self) -> list[Change]:
        number = self._flow.batches
        return [
            (f"k{key}", {"product": f"k{key}", "amount": number, "note": _NOTE}) for key in range(_KEYS - 1)
        ] + [("gone", None if number % 2 else {"product": "gone", "amount": number, "note": None})]

    def _judge_readers(self, readers: Sequence[SocketReader], late: Sequence[SocketReader]) -> None:
        for kind, some in (("reads", readers), ("was late", late)):
            for one in some:
                self._judge_rows(one, kind)
                if one.hellos != 1 or one.steps[0][0] != 1 or one.steps[-1][1] != self._last:
                    self._object(f"one who {kind} did not get every batch in one connection: {one.steps}")
        self._outcome.hits += len(late)
        fewest = min(len(one.steps) for one in late)
        self._outcome.figures["steps_of_late"] = fewest
        if not all(any(last - first > 3 for first, last in one.steps) for one in late):
            self._object("what those who were late had not taken was not told as fewer steps")

    def _judge_stuck(self, stuck: Sequence[SocketReader], *, may_be_dropped: bool) -> None:
        for one in stuck:
            self._outcome.problems += one.problems
            if may_be_dropped and one.is_closed and one.bye is None:
                continue
            if one.bye is None or (one.bye.close, one.close_code) != (4000, 4000) or one.bye.cursor is None:
                self._object(
                    f"one who did not read was not sent away as promised: {one.bye}, {one.close_code}"
                )
                return
            self._outcome.hits += 1

    async def _come_again(self, away: Sequence[SocketReader]) -> None:
        turned_away = 0
        again = [await self._open(one) for one in away]
        deadline = time.monotonic() + _WAIT_S
        while [at for at, one in enumerate(again) if one.batch != self._last or one.is_closed]:
            if time.monotonic() > deadline:
                wrong = [vars(one) for one in again if one.batch != self._last or one.is_closed]
                raise AssertionError(f"{len(wrong)} of {len(again)} did not get there: {wrong[:2]}"[:3_000])
            await asyncio.sleep(0.2)
            # A server that is busy asks to be asked again: what it promises then is where to go on.
            for at, one in enumerate(again):
                if one.is_closed and one.bye is not None and one.bye.close in _COME_AGAIN:
                    self._outcome.problems += one.problems
                    again[at] = await self._open(one)
                    turned_away += 1
        self._outcome.figures["turned_away"] = turned_away
        for one in again:
            self._judge_rows(one, "came again")
            if not one.resumed and one.resets != 1:
                self._object("one who came again was not told that it begins anew")
            one.end()
        self._outcome.figures["resumed"] = sum(one.resumed for one in again)

    def _judge_rows(self, one: SocketReader, kind: str) -> None:
        self._outcome.problems += one.problems
        wanted = {key: values[1] for key, values in self._flow.derived.rows.items()}
        if one.rows != wanted:
            self._outcome.lost += 1
            self._object(f"one who {kind} has {one.rows} at the end, not {wanted}")

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    async def _until(self, true: Callable[[], bool], what: str, some: Sequence[SocketReader] = ()) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not true():
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 0.2)
            if time.monotonic() > deadline:
                wrong = [one for one in some if one.batch != self._last]
                told = [vars(one) for one in wrong[:3]]
                raise AssertionError(
                    f"waited {_WAIT_S:.0f} s for {what}: {len(wrong)} of {len(some)}, {told}"[:3_000]
                )
