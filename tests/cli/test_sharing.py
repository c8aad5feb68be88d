"""``headrace view follow --group``: processes share an app's views, and take over those of a lost process."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path

from faults.servers.server import Server
from faults.wait import until, unwatch, watched_process
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace

APP = "tests.cli.shared_views:app"
VIEWS = {"one", "two", "three", "four"}
# The shortest session timeout that Headrace and Apache Kafka allow by default.
SHORT_SESSION = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500")


def owners(data: Path) -> dict[str, int]:
    """Return the process id of the owner of each view."""
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
    owner_of_view = owners(data)
    return set(owner_of_view) == VIEWS and set(owner_of_view.values()) == {
        process.pid for process in processes
    }


def equal_shares(*processes: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
    """Return the number of views per process, if the processes share the views equally."""
    return sorted((process.pid, len(VIEWS) // len(processes)) for process in processes)


def test_processes_of_a_group_share_views_and_take_over_those_of_a_lost_process(
    embedded: Server, tmp_path: Path
) -> None:
    Cluster(embedded.bootstrap).ensure_topic("sharing-items", 1, {"cleanup.policy": "compact"})
    headrace = Headrace(embedded.bootstrap)
    words = ("view", "follow", APP, "--group", "g", "--data", str(tmp_path), *SHORT_SESSION)

    def produce_item(number: int) -> None:
        line = f'a\t{{"item_id":"a","pieces":{number}}}\n'.encode()
        headrace.ok("produce", "sharing-items", "-f", "%k\t%v\n", stdin=line)

    produce_item(1)
    with headrace.started(*words) as first, watched_process(first, "the first"):
        until(lambda: shared(tmp_path, first), "the first process has all views")
        with headrace.started(*words) as second, watched_process(second, "the second"):
            # The first process hands the views over one by one.
            until(
                lambda: sorted(Counter(owners(tmp_path).values()).items()) == equal_shares(first, second),
                "two processes share the views equally",
            )
            produce_item(2)
            until(lambda: set(pieces(tmp_path).values()) == {2}, "all views are up to date")
            unwatch(second)
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
            produce_item(3)
            until(lambda: shared(tmp_path, first), "the other process has all views")
            until(lambda: set(pieces(tmp_path).values()) == {3}, "all views are up to date again")
        with headrace.started(*words) as third, watched_process(third, "the third"):
            until(lambda: shared(tmp_path, first, third), "two processes share the views again")
            unwatch(third)
            third.send_signal(signal.SIGINT)
            _, err = third.communicate(timeout=240)
            assert third.returncode == 130, err
            until(lambda: shared(tmp_path, first), "the views of the lost process are taken over")


def test_a_group_shares_all_views(headrace: Headrace, tmp_path: Path) -> None:
    refused = headrace.run("view", "follow", APP, "one", "--group", "g", "--data", str(tmp_path))
    assert refused.code == 2
    assert "--group cannot be combined" in refused.err
