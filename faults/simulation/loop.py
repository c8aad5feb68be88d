"""An event loop on simulated time, without real threads. A seed replays everything.

Waiting takes no time: where the loop would sleep, it advances its clock instead. A job for a thread runs whole, in a
later turn of the loop, after a delay that the seed chooses. Hooks of the simulated files inject the events that could
happen while a real thread waits for the disk.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import traceback
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

from faults.disk.faulty_files import Crash
from faults.patch import patched
from headrace.errors import HeadraceError
from headrace.log import committer
from headrace.log.pace import Interrupted
from headrace.testing.clock import DrivenClock

__all__ = ["run_process"]

_THREAD_DELAYS_S = (0.0, 0.0, 0.0, 0.0005, 0.003)


class _ClockSelector(selectors.DefaultSelector):
    """Advances the clock where another selector would wait."""

    def __init__(self, clock: DrivenClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("the simulated process waits forever: no event is scheduled")
            self._clock.advance(max(timeout, 0.0))
        return ready


class _SimLoop(asyncio.SelectorEventLoop):
    threads: _SimThreads

    def __init__(self, clock: DrivenClock) -> None:
        self._driven = clock
        super().__init__(_ClockSelector(clock))

    def time(self) -> float:
        return self._driven.steady()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        # Also if the broker names an executor of its own: its threads would be real, and their results would arrive at
        # random times.
        return super().run_in_executor(self.threads, func, *args)


class _SimThreads(Executor):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        on_crash: Callable[[], None],
        report_problem: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._end = on_crash
        self._object_to = report_problem

    def submit(self, job: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._loop.call_later(self._rng.choice(_THREAD_DELAYS_S), self._run, future, job, arguments, options)
        return future

    def _run(
        self, future: Future[Any], job: Callable[..., Any], arguments: Any, options: dict[str, Any]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = job(*arguments, **options)
        except Crash:
            self._end()
        except Exception as error:
            if not isinstance(error, OSError | HeadraceError | Interrupted):
                self._object_to(f"a thread died: {_describe(error)}")
            future.set_exception(error)
        else:
            future.set_result(result)


def run_process(
    clock: DrivenClock,
    rng: random.Random,
    main: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
    report_problem: Callable[[str], None],
    *,
    at_most_s: float = 3600.0,
) -> bool:
    """Run one process. Return True if it ended by itself, False if a crash of its files ended it.

    ``main`` receives a function that it calls when the files have crashed, because any part of the process can notice
    it first.
    """
    with asyncio.Runner(loop_factory=lambda: _SimLoop(clock)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, _SimLoop)
        ended: asyncio.Future[None] = loop.create_future()

        def mark_ended() -> None:
            if not ended.done():
                ended.set_result(None)

        def handle_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, Crash):
                mark_ended()
            elif not ended.done():
                report_problem(f"{context.get('message')}: {_describe(error)}")

        async def run_main() -> bool:
            task = asyncio.ensure_future(main(mark_ended))
            await asyncio.wait({task, ended}, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return False
            if not task.done():
                report_problem(f"the process was stuck for {at_most_s:.0f} s: {_where(task)}")
                task.cancel()
                return True
            error = task.exception()
            if isinstance(error, Crash):
                return False
            if error is not None:
                report_problem(f"the process died: {_describe(error)}")
            return True

        loop.set_exception_handler(handle_exception)
        loop.threads = threads = _SimThreads(loop, rng, mark_ended, report_problem)
        with (
            patched(committer, "ThreadPoolExecutor", lambda *_, **__: threads),
            patched(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        ):
            try:
                return runner.run(run_main())
            except Crash:
                mark_ended()
                return False


def _describe(error: BaseException | None) -> str:
    if error is None:
        return "no error was reported"
    last = traceback.extract_tb(error.__traceback__)[-3:]
    steps = " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(last))
    return f"{type(error).__name__}: {error} ({steps})"


def _where(task: asyncio.Task[None]) -> str:
    frames = task.get_stack(limit=1)
    return f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "unknown"
