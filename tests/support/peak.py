"""Peak Python allocation of a function, measured in a process without other threads.

CPython 3.11 crashes (a null pointer) if a foreign thread, such as a callback of librdkafka, enters Python while
``tracemalloc`` starts or stops; and test processes have such threads.
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
        # The forked child uses no lock or resource that a thread of this process may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _measure(work, writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        peak = file.read()
    os.waitpid(child, 0)
    assert peak.isdecimal(), peak or "the measuring process died"
    return int(peak)


def _measure(work: Callable[[], object], writing: int) -> None:
    try:
        tracemalloc.start()
        work()
        peak = str(tracemalloc.get_traced_memory()[1])
    except BaseException:
        peak = traceback.format_exc()
    os.write(writing, peak.encode())
    os._exit(0)
