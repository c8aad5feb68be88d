"""The process that runs one search: ``python -m headrace.serve.console.search_worker``.

The process limits the time and memory of an expression. The server can kill it at any time, and it exits when the
server has exited. Its first line of output is ``{}`` if the expression is valid.
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
from headrace.serve.console.search import SearchJob, search
from headrace.serve.console.sieve import sieve_of
from headrace.serve.console.where import Where
from headrace.serve.errors import SearchEnded
from headrace.serve.http.problem import problem_of

__all__ = ["WorkerInput", "main"]

_GRACE_S = 30


class WorkerInput(msgspec.Struct, frozen=True):
    bootstrap: str
    properties: dict[str, str]
    memory_bytes: int
    job: SearchJob


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerInput)
    signal.alarm(int(task.job.time_s) + _GRACE_S)
    _limit_memory(task.memory_bytes)
    try:
        where = Where(task.job.where)
        sink.write(b"{}\n")
        sink.flush()
        cluster = Cluster(task.bootstrap, task.properties)
        for line in search(cluster, task.job, SystemClock(), sieve_of(task.job.where), where.matches):
            sink.write(line)
            sink.flush()
    except (HeadraceError, MemoryError) as error:
        problem = error if isinstance(error, HeadraceError) else _memory_error(task.memory_bytes)
        sink.write(b'{"problem":' + problem_of(problem, "").body + b"}\n")
        sink.flush()
    except BrokenPipeError:
        pass
    # Exit without joining the Kafka client's threads.
    os._exit(0)


def _memory_error(memory_bytes: int) -> SearchEnded:
    return SearchEnded(
        f"the search needs more than {memory_bytes >> 20} MiB of memory", hint="write a shorter expression"
    )


def _limit_memory(memory_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory_bytes, hard))


if __name__ == "__main__":
    main()
