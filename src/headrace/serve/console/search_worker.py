"""The process that searches, one topic once: ``python -m headrace.serve.console.search_worker``.

What an expression takes, in time and memory, is taken here, and not from the server: it can be killed at any moment,
and ends by itself when the server is gone. The first line of its answer says that the expression can be read.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.serve.console.errors import SearchEnded
from headrace.serve.console.search import Ask, search
from headrace.serve.console.sieve import sieve_of
from headrace.serve.console.where import Where
from headrace.serve.problem import problem_of

__all__ = ["Job", "main"]

_GRACE_S = 30


class Job(msgspec.Struct, frozen=True):
    bootstrap: str
    properties: dict[str, str]
    memory_bytes: int
    ask: Ask


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    signal.alarm(int(job.ask.time_s) + _GRACE_S)
    _limit_memory(job.memory_bytes)
    try:
        where = Where(job.ask.where)
        sink.write(b"{}\n")
        sink.flush()
        cluster = Cluster(job.bootstrap, job.properties)
        for line in search(cluster, job.ask, SystemClock(), sieve_of(job.ask.where), where.matches):
            sink.write(line)
            sink.flush()
    except (HeadraceError, MemoryError) as error:
        told = error if isinstance(error, HeadraceError) else _too_much(job.memory_bytes)
        sink.write(b'{"problem":' + problem_of(told, "").body + b"}\n")
        sink.flush()
    except BrokenPipeError:
        pass
    # The client's threads may be in the middle of something, and nobody waits for it.
    os._exit(0)


def _too_much(memory_bytes: int) -> SearchEnded:
    return SearchEnded(
        f"the search needs more than {memory_bytes >> 20} MiB of memory", hint="write a shorter expression"
    )


def _limit_memory(memory_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory_bytes, hard))


if __name__ == "__main__":
    main()
