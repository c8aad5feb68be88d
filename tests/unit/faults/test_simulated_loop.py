"""The simulated event loop has no real threads, so a seed replays everything."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.testing.faulty_clock import DrivenClock

from faults.simulation.loop import run_process


def test_a_job_for_an_executor_of_the_process_runs_without_a_real_thread() -> None:
    threads: list[int] = []
    problems: list[str] = []

    async def main(mark_ended: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            for chosen in (None, executor):
                await loop.run_in_executor(chosen, lambda: threads.append(threading.get_ident()))

    assert run_process(DrivenClock(), random.Random(1), main, problems.append)
    assert threads == [threading.get_ident()] * 2
    assert problems == []
