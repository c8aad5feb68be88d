"""What something allocates in Python at the most, measured in a process without other threads.

A thread that comes into Python from elsewhere, as those of librdkafka do with an answer, ends the process (a null
pointer in CPython 3.11) where ``tracemalloc`` is begun or ended at that moment; and test processes have such threads.
"""

from __future__ import annotations

import os
import traceback
import tracemalloc
import warnings
from collections.abc import Callable

__all__ = ["peak_bytes"]


def peak_bytes(work: Callable[[], object]) -> int:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # What only the threads of this process hold, the other one does not touch.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _measure(work, writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    os.waitpid(child, 0)
    assert told.isdecimal(), told or "the process that measured has died"
    return int(told)


def _measure(work: Callable[[], object], writing: int) -> None:
    try:
        tracemalloc.start()
        work()
        told = str(tracemalloc.get_traced_memory()[1])
    except BaseException:
        told = traceback.format_exc()
    os.write(writing, told.encode())
    os._exit(0)
