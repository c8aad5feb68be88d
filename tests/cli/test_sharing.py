"""``headrace view follow --group``: processes that share an app's views, and take over what one of them leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path

from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace
from tests.support.server import Server
from tests.support.waiting import until, unwatch, watched_process

APP = "tests.cli.shared_views:app"
VIEWS = {"one", "two", "three", "four"}
# No shorter one is allowed by default, here and on Apache Kafka.
SOON = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500")


def owners(data: Path) -> dict[str, int]:
    """The process that has each view."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{data / 'sharing.db'}?mode=ro", uri=True)) as store:
            found = store.execute("SELECT view, owner FROM _headrace_owners").fetchall()
    except sqlite3.OperationalError:
        return {}
    return {view: int(owner.split(":")[1]) for view, owner in found}


def pieces(data: Path) -> dict[str, int | None]:
    with contextlib.closing(sqlite3.connect(f"file:{data / 'sharing.db'}?mode=ro", uri=True)) as store:
        found = {view: store.execute(f'SELECT pieces FROM "{view}"').fetchone() for view in VIEWS}
    return {view: row[0] if row else None for view, row in found.items()}


def shared(data: Path, *processes: subprocess.Popen[bytes]) -> bool:
    held = owners(data)
    return set(held) == VIEWS and set(held.values()) == {one.pid for one in processes}


def both(*processes: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
    """How many views each has, if all have as many."""
    return sorted((one.pid, len(VIEWS) // len(processes)) for one in processes)


def test_processes_of_a_group_share_the_views_and_take_over_from_one_that_is_gone(
    embedded: Server, tmp_path: Path
) -> None:
    Cluster(embedded.bootstrap).ensure_topic("sharing-items", 1, {"cleanup.policy": "compact"})
    headrace = Headrace(embedded.bootstrap)
    words = ("view", "follow", APP, "--group", "g", "--data", str(tmp_path), *SOON)

    def put(number: int) -> None:
        line = f'a\t{{"item_id":"a","pieces":{number}}}\n'.encode()
        headrace.ok("produce", "sharing-items", "-f", "%k\t%v\n", stdin=line)

    put(1)
    with headrace.started(*words) as first, watched_process(first, "the first"):
        until(lambda: shared(tmp_path, first), "one has all views")
        with headrace.started(*words) as second, watched_process(second, "the second"):
            # One after the other is handed over.
            until(
                lambda: sorted(Counter(owners(tmp_path).values()).items()) == both(first, second),
                "two share them, each as many",
            )
            put(2)
            until(lambda: set(pieces(tmp_path).values()) == {2}, "all views are up to date")
            unwatch(second)
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
            put(3)
            until(lambda: shared(tmp_path, first), "the other one has them")
            until(lambda: set(pieces(tmp_path).values()) == {3}, "all views are up to date again")
        with headrace.started(*words) as third, watched_process(third, "the third"):
            until(lambda: shared(tmp_path, first, third), "two share them again")
            unwatch(third)
            third.send_signal(signal.SIGINT)
            _, err = third.communicate(timeout=240)
            assert third.returncode == 130, err
            until(lambda: shared(tmp_path, first), "what was left is taken over")


def test_a_group_shares_all_views(headrace: Headrace, tmp_path: Path) -> None:
    refused = headrace.run("view", "follow", APP, "one", "--group", "g", "--data", str(tmp_path))
    assert refused.code == 2
    assert "--group goes with neither" in refused.err
