"""A driver of the flow that dies after it published the rows of a batch, before Spark records that the batch is done.

    python -m examples.members.driver ADDRESS-OF-THE-LOG DATA

Headrace has no hook at this point, so the example wraps the writer. The first transaction registers this process as the
driver of the flow. The second transaction is a batch. After it, the process kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from examples.members import app
from headrace.client.transactional_writer import TransactionalWriter
from headrace.runtime.run import Run
from headrace.settings import LogSettings, Settings, SparkSettings

__all__ = ["main"]


def main(bootstrap: str, data: str) -> None:
    commit, commits = TransactionalWriter.commit, 0

    def commit_and_die(self: TransactionalWriter) -> None:
        nonlocal commits
        commit(self)
        commits += 1
        if commits == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    TransactionalWriter.commit = commit_and_die  # type: ignore[method-assign]
    settings = Settings(
        data=Path(data),
        log=LogSettings(bootstrap_servers=bootstrap),
        spark=SparkSettings(driver_memory="512m", java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    )
    run = Run(app, settings, note=print, with_views=False)
    run.start()
    while not run.failed:
        time.sleep(0.1)
    sys.exit(f"{run.failed[0].error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
