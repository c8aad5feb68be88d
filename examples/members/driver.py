"""A driver of the flow that dies at the worst moment: what it has derived is published, and nobody has been told that
its input is done.

    python -m examples.members.driver ADDRESS-OF-THE-LOG DATA

The product has no such place of its own, so its writer is wrapped. The first transaction names this process as the
driver of the flow; the second is a batch, and the last thing that this process does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from examples.members import app
from headrace.flow.writer import Writer
from headrace.runtime.run import Run
from headrace.settings import LogSettings, Settings, SparkSettings

__all__ = ["main"]


def main(bootstrap: str, data: str) -> None:
    commit, commits = Writer.commit, 0

    def commit_and_die(self: Writer) -> None:
        nonlocal commits
        commit(self)
        commits += 1
        if commits == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Writer.commit = commit_and_die  # type: ignore[method-assign]
    settings = Settings(
        data=Path(data),
        log=LogSettings(bootstrap_servers=bootstrap),
        spark=SparkSettings(driver_memory="512m", java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    )
    run = Run(app, settings, tell=print, with_views=False)
    run.start()
    while not run.failed:
        time.sleep(0.1)
    sys.exit(f"{run.failed[0].error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
