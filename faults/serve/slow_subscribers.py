"""Fault X22, slow and many subscribers by WebSocket: a thousand follow a view without reading, while some others do
read. A *step* is the set of changes that a subscriber receives at once.

A third of the thousand pauses for a while and then continues to read: these receive fewer, larger steps. Another third
does not read until everything was written, which is more than the server keeps for them: the server disconnects them
with a last message, a close frame, and a cursor to resume from. The last third never reads again: the server drops
these subscribers after half a minute.

What must hold: subscribers that read receive every batch once, in order, in one connection. So do those that paused, in
fewer steps. Each disconnected or dropped subscriber resumes with its cursor and has the view's rows at the end. A
subscriber costs less than 64 KB, whether it reads or not, and all of this memory is freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.log.slow_clients import allow_files
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.socket_reader import SocketReader
from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from faults.views.follower_process import FollowerProcess
from faults.views.scripted_flow import Change, ScriptedFlow
from headrace.client.cluster import Cluster

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X22"
UNPROTECTED = {"back-pressure": r"that do not read cost", "forgetting": r"was not disconnected as documented"}
RUNS = 3

_NAME = "derived"
_APP = "faults.serve.derived_app:app"
_KEYS = 3
_NOTE = "x" * 15_000
_HISTORY_BYTES = 4_000_000
_MANY = 1_000
_KB_EACH_MAX = 64
_MB_FEW_MAX = 96
"""The limit in total for a run with few subscribers. Memory that does not depend on their number would exceed a limit
per subscriber.
"""
_FIRST = 40
"""Subscribers that connect before the measurement. One of them stays, so that the shared readers of the log and the
store stay open.
"""
_FILES_SPARE = 20
"""Allow this many further open files, because a busy server can open more shared readers of the log and the store."""
_PART = 30
"""Batches that the late subscribers miss: more than the kernel buffers, less than the server keeps."""
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
    """With ``waits_for_dropped``, wait until the subscribers that never read are dropped. Quick runs omit this."""
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
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        flow = ScriptedFlow(Cluster(broker.bootstrap), _NAME, partitions=1)
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
        outcome.problems += [
            f"the server logged an unexpected exception:\n{fault}" for fault in server.unexpected_exceptions()
        ]
        outcome.problems += broker.unexpected_exceptions()
    return outcome


def _follow(bootstrap: str, data: Path) -> FollowerProcess:
    data.mkdir(parents=True, exist_ok=True)
    follower = FollowerProcess(bootstrap, "sqlite", str(data / "shop.db"), _NAME)
    follower.wait_for("applied", 0)
    return follower


class _Scene:
    def __init__(
        self, server: ServeProcess, flow: ScriptedFlow, rng: random.Random, outcome: Outcome
    ) -> None:
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
        await self._until(
            lambda: all(subscriber.batch == 0 for subscriber in (*readers, *crowd)),
            "the rows of all subscribers",
        )
        idle_kb = (server.rss_mb() - rss_mb) * 1024 / (slow + good)
        outcome.figures["kb_idle"] = idle_kb
        if slow >= _MANY and idle_kb > _KB_EACH_MAX:
            self._report_problem(f"{slow + good} idle subscribers cost {idle_kb:.0f} KB each")
        self._rng.shuffle(crowd)
        late, stuck, never = crowd[::3], crowd[1::3], crowd[2::3]
        for subscriber in crowd:
            subscriber.pause()
        asleep = time.monotonic()
        await self._write_on(late, readers)
        await self._until(
            lambda: all(reader.batch == self._last for reader in readers), "the subscribers that read"
        )
        await self._until(
            lambda: all(subscriber.batch == self._last for subscriber in late), "the late subscribers"
        )
        grown_mb = server.rss_mb("VmHWM") - rss_mb
        outcome.figures["slow_mb"] = grown_mb
        most_mb = (slow + good) * _KB_EACH_MAX / 1024 if slow >= _MANY else _MB_FEW_MAX
        if grown_mb > most_mb:
            self._report_problem(
                f"{slow} subscribers that do not read cost {grown_mb:.0f} MB, but only {most_mb:.0f} MB are allowed"
            )
        self._judge_readers(readers, late)
        if outcome.problems:
            return
        for subscriber in stuck:
            subscriber.read_on()
        await self._until(
            lambda: all(subscriber.is_closed or subscriber.batch == self._last for subscriber in stuck),
            "the subscribers that did not read",
            stuck,
        )
        # On a busy machine the writes can take longer than half a minute, so the server may have dropped
        # these subscribers before it could disconnect them.
        self._judge_stuck(stuck, may_be_dropped=time.monotonic() - asleep > _SILENT_S)
        if outcome.problems:
            # Subscribers that were not disconnected still occupy their slots.
            return
        if waits_for_dropped:
            await asyncio.sleep(max(0.0, asleep + _DROPPED_S - time.monotonic()))
            for subscriber in never:
                subscriber.read_on()
            await self._until(
                lambda: all(subscriber.is_closed for subscriber in never), "the dropped subscribers", never
            )
            outcome.hits += sum(subscriber.bye is None for subscriber in never)
        else:
            for subscriber in never:
                subscriber.end()
        await self._come_again([*stuck, *never])
        for subscriber in (*readers, *late):
            subscriber.end()
        await self._until(
            lambda: server.files() <= files + _FILES_SPARE, f"the server's open files to be {files} again"
        )
        left.end()

    async def _first_come(self) -> SocketReader:
        """Connect the first subscribers, disconnect all but one, and return that one."""
        came = [await self._open() for _ in range(_FIRST)]
        await self._until(
            lambda: all(subscriber.batch == 0 for subscriber in came),
            "the rows of the first subscribers",
            came,
        )
        files = self._server.files()
        for subscriber in came[1:]:
            subscriber.end()
        await self._until(
            lambda: self._server.files() <= files - len(came) + 1 + _FILES_SPARE,
            "the first subscribers to disconnect",
        )
        return came[0]

    @property
    def _last(self) -> int:
        return self._flow.batches - 1

    async def _open(self, known: SocketReader | None = None, *, narrow: bool = False) -> SocketReader:
        return await SocketReader.open(self._server.port, _NAME, self._news.set, known=known, narrow=narrow)

    async def _write_on(self, late: Sequence[SocketReader], readers: Sequence[SocketReader]) -> None:
        """Write batches. From time to time the late subscribers read until they have everything. Each batch is sent
        alone: coalesced batches take less memory, and the server might keep all of them.
        """
        for _ in range(_PARTS):
            for _ in range(_PART):
                await asyncio.to_thread(self._flow.batch, self._changes())
                await self._until(lambda: readers[0].batch == self._last, "the batch", readers)
            for subscriber in late:
                subscriber.read_on()
            await self._until(
                lambda: all(subscriber.batch == self._last for subscriber in late),
                "the late subscribers",
                late,
            )
            for subscriber in late:
                subscriber.pause()
        for subscriber in late:
            subscriber.read_on()

    def _changes(self) -> list[Change]:
        number = self._flow.batches
        return [
            (f"k{key}", {"product": f"k{key}", "amount": number, "note": _NOTE}) for key in range(_KEYS - 1)
        ] + [("gone", None if number % 2 else {"product": "gone", "amount": number, "note": None})]

    def _judge_readers(self, readers: Sequence[SocketReader], late: Sequence[SocketReader]) -> None:
        for kind, some in (("reads", readers), ("was late", late)):
            for subscriber in some:
                self._judge_rows(subscriber, kind)
                if (
                    subscriber.hellos != 1
                    or subscriber.steps[0][0] != 1
                    or subscriber.steps[-1][1] != self._last
                ):
                    self._report_problem(
                        f"a subscriber that {kind} did not receive every batch in one connection: {subscriber.steps}"
                    )
        self._outcome.hits += len(late)
        fewest = min(len(subscriber.steps) for subscriber in late)
        self._outcome.figures["steps_of_late"] = fewest
        if not all(any(last - first > 3 for first, last in subscriber.steps) for subscriber in late):
            self._report_problem("the late subscribers did not receive the missed batches in fewer steps")

    def _judge_stuck(self, stuck: Sequence[SocketReader], *, may_be_dropped: bool) -> None:
        for subscriber in stuck:
            self._outcome.problems += subscriber.problems
            if may_be_dropped and subscriber.is_closed and subscriber.bye is None:
                continue
            if (
                subscriber.bye is None
                or (subscriber.bye.close, subscriber.close_code) != (4000, 4000)
                or subscriber.bye.cursor is None
            ):
                self._report_problem(
                    f"a subscriber that did not read was not disconnected as documented:"
                    f" {subscriber.bye}, {subscriber.close_code}"
                )
                return
            self._outcome.hits += 1

    async def _come_again(self, away: Sequence[SocketReader]) -> None:
        turned_away = 0
        again = [await self._open(subscriber) for subscriber in away]
        deadline = time.monotonic() + _WAIT_S
        while [
            at
            for at, subscriber in enumerate(again)
            if subscriber.batch != self._last or subscriber.is_closed
        ]:
            if time.monotonic() > deadline:
                wrong = [
                    vars(subscriber)
                    for subscriber in again
                    if subscriber.batch != self._last or subscriber.is_closed
                ]
                raise AssertionError(
                    f"{len(wrong)} of {len(again)} subscribers did not catch up: {wrong[:2]}"[:3_000]
                )
            await asyncio.sleep(0.2)
            # A busy server can request a retry, but must then keep the cursor valid.
            for at, subscriber in enumerate(again):
                if (
                    subscriber.is_closed
                    and subscriber.bye is not None
                    and subscriber.bye.close in _COME_AGAIN
                ):
                    self._outcome.problems += subscriber.problems
                    again[at] = await self._open(subscriber)
                    turned_away += 1
        self._outcome.figures["turned_away"] = turned_away
        for subscriber in again:
            self._judge_rows(subscriber, "reconnected")
            if not subscriber.resumed and subscriber.resets != 1:
                self._report_problem("a subscriber that reconnected started over without a reset message")
            subscriber.end()
        self._outcome.figures["resumed"] = sum(subscriber.resumed for subscriber in again)

    def _judge_rows(self, subscriber: SocketReader, kind: str) -> None:
        self._outcome.problems += subscriber.problems
        wanted = {key: values[1] for key, values in self._flow.derived.rows.items()}
        if subscriber.rows != wanted:
            self._outcome.lost += 1
            self._report_problem(
                f"a subscriber that {kind} has {subscriber.rows} at the end instead of {wanted}"
            )

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    async def _until(self, true: Callable[[], bool], what: str, some: Sequence[SocketReader] = ()) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not true():
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 0.2)
            if time.monotonic() > deadline:
                wrong = [subscriber for subscriber in some if subscriber.batch != self._last]
                shown = [vars(subscriber) for subscriber in wrong[:3]]
                raise AssertionError(
                    f"waited {_WAIT_S:.0f} s for {what}: {len(wrong)} of {len(some)}, {shown}"[:3_000]
                )
