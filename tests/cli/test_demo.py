"""``headrace demo``: real traffic, counted to the last record."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import time
from pathlib import Path

import psutil

from tests.cli.runner import Headrace
from tests.support.waiting import until

ANYWHERE = Headrace("127.0.0.1:1")


def test_it_ends_by_itself_with_books_that_balance() -> None:
    result = ANYWHERE.call("demo", "--for", "3", "--rate", "1000", "--json")
    assert result.code == 0, result.err
    *looks, summary = result.json
    assert summary["kind"] == "summary"
    assert summary["produced"] == summary["acknowledged"] > 1_000
    assert summary["refused"] == 0
    shares = {"billing": ("orders", "payments"), "analytics": ("orders", "clicks")}
    ends = {topic["name"]: sum(topic["end_offsets"]) for topic in looks[-1]["topics"]}
    assert sum(ends.values()) == summary["acknowledged"], "the broker's own offsets say the same"
    for group, topics in shares.items():
        counts = summary["groups"][group]
        assert counts["read"] == sum(ends[topic] for topic in topics)
        assert (counts["lost"], counts["doubled"], counts["altered"], counts["unacknowledged"]) == (
            0,
            0,
            0,
            0,
        )
    assert summary["groups"]["analytics"]["lag_max"] > 0, "the slow group was seen behind"
    assert 0 < summary["latency_p50_ms"] <= summary["latency_p99_ms"]
    assert summary["broker_rss_mb"] > 0


def test_ctrl_c_ends_it_with_a_summary_and_leaves_no_broker_behind(tmp_path: Path) -> None:
    with ANYWHERE.started("demo", "--rate", "500", "--data", str(tmp_path / "kept")) as process:
        assert process.stdout is not None
        assert b"msg/s" in process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        assert re.search(r"group billing +read \d+, lost 0, doubled 0", out.decode())
        assert b"headrace topic list -b 127.0.0.1:" in err, "it says how to look at it"
        until(lambda: not broker.is_running(), "the broker is gone")
        assert (tmp_path / "kept").is_dir()


def test_data_that_was_kept_is_gone_on_with(tmp_path: Path) -> None:
    for _ in range(2):
        result = ANYWHERE.call("demo", "--for", "1", "--rate", "300", "--data", str(tmp_path / "d"), "--json")
        assert result.code == 0, result.err
    *_, look, summary = result.json
    assert sum(topic["records"] for topic in look["topics"]) > summary["acknowledged"]


def test_a_broker_that_dies_under_it_fails_it() -> None:
    with ANYWHERE.started("demo", "--rate", "200") as process:
        assert process.stdout is not None
        assert b"msg/s" in process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        broker.kill()
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert b"the broker ended by itself" in err


def test_the_broker_goes_when_the_demo_is_killed() -> None:
    with ANYWHERE.started("demo", "--rate", "200") as process:
        assert process.stdout is not None
        process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        process.kill()
        process.communicate()
        until(
            lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, "the broker is gone"
        )


def test_on_a_terminal_it_is_shown_in_place() -> None:
    ours, theirs = pty.openpty()
    with ANYWHERE.started(
        "demo", "--for", "2", "--rate", "300", stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            if not part:
                break
            seen += part
        assert process.wait(30) == 0
        os.close(ours)
        text = seen.decode()
        assert "topics" in text
        assert "analytics" in text
        assert "lost 0, doubled 0" in text


def test_an_address_that_cannot_be_listened_on_fails_with_the_brokers_words() -> None:
    result = ANYWHERE.call("demo", "--for", "1", "--listen", "192.0.2.1:1", "--json")
    assert result.code == 1
    assert "192.0.2.1" in json.loads(result.err.splitlines()[-1])["error"]["detail"]
