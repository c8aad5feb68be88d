"""``headrace demo``: real traffic, counted to the last record."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
from pathlib import Path

import psutil

from tests.cli.runner import Headrace
from tests.support.waiting import until

ANYWHERE = Headrace("127.0.0.1:1")


def test_it_ends_by_itself_with_books_that_balance_and_goes_on_with_data_that_was_kept(
    tmp_path: Path,
) -> None:
    words = ["demo", "--rate", "1000", "--data", str(tmp_path / "kept"), "--json"]
    earlier = 0
    for seconds in ("2", "1"):
        result = ANYWHERE.call(*words, "--for", seconds)
        assert result.code == 0, result.err
        *_, look, summary = result.json
        assert summary["kind"] == "summary"
        assert summary["produced"] == summary["acknowledged"] > 300
        assert summary["refused"] == 0
        ends = {topic["name"]: sum(topic["end_offsets"]) for topic in look["topics"]}
        assert sum(ends.values()) == earlier + summary["acknowledged"], (
            "the broker's own offsets say the same"
        )
        for counts in summary["groups"].values():
            assert counts["lost"] == counts["doubled"] == counts["altered"] == counts["unacknowledged"] == 0
        if not earlier:
            assert summary["groups"]["billing"]["read"] == ends["orders"] + ends["payments"]
            assert summary["groups"]["analytics"]["read"] == ends["orders"] + ends["clicks"]
        assert 0 < summary["latency_p50_ms"] <= summary["latency_p99_ms"]
        assert summary["broker_rss_mb"] > 0
        earlier = sum(ends.values())


def test_on_a_terminal_it_is_shown_in_place_until_ctrl_c_and_leaves_no_broker_behind() -> None:
    ours, theirs = pty.openpty()
    with ANYWHERE.started("demo", "--rate", "300", stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        brokers: list[psutil.Process] = []
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            seen += part
            if not brokers and b"analytics" in seen:
                brokers = psutil.Process(process.pid).children()
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, seen.decode()
    os.close(ours)
    text = seen.decode()
    assert "headrace topic list -b 127.0.0.1:" in text, "it says how to look at it"
    assert re.search(r"group analytics +read \d+, lost 0, doubled 0", text)
    assert len(brokers) == 1
    until(lambda: not brokers[0].is_running(), "the broker is gone")


def test_a_broker_that_dies_under_it_fails_it() -> None:
    with ANYWHERE.started("demo", "--rate", "200") as process:
        assert process.stdout is not None
        assert b"msg/s" in process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        broker.kill()
        _, err = process.communicate(timeout=480)
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


def test_an_address_that_cannot_be_listened_on_fails_with_the_brokers_words() -> None:
    result = ANYWHERE.call("demo", "--for", "1", "--listen", "192.0.2.1:1", "--json")
    assert result.code == 1
    assert "192.0.2.1" in json.loads(result.err.splitlines()[-1])["error"]["detail"]
