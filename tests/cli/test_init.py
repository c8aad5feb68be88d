"""``headrace init``: what it makes is an app without mistakes that runs, and nothing is overwritten for it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Headrace
from tests.support.waiting import until, unwatch, watch_process
from tools.java import QUICK_START

AWAY = Headrace("")
QUICK = {
    "HEADRACE_SPARK__JAVA_OPTIONS": " ".join(QUICK_START),
    "HEADRACE_SPARK__MASTER": "local[2]",
    "HEADRACE_LOG__LISTEN": "127.0.0.1:0",
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "My Pages"
    AWAY.ok("init", str(folder))
    return folder


def in_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words],
        cwd=folder,
        env=AWAY.environment(QUICK),
        capture_output=True,
        text=True,
        timeout=480,
    )


def test_the_app_that_is_made_has_no_mistakes_and_the_name_of_its_folder(made: Path) -> None:
    told = [json.loads(line) for line in in_folder(made, "doctor", "app:app", "--json").stdout.splitlines()]
    about = [(one["state"], one["text"]) for one in told if one["check"] in ("app", "store")]
    assert about == [
        ("ok", "app my-pages: 2 topics, 1 flows, 1 views"),
        ("ok", "headrace-data/my-pages.db, for pages: made by the first start"),
    ]
    assert sorted(path.name for path in made.iterdir() if path.name != "__pycache__") == [
        ".gitignore",
        "README.md",
        "app.py",
        "headrace.toml",
        "test_app.py",
    ]


def test_nothing_is_written_where_a_file_would_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    refused = AWAY.run("init", str(tmp_path))
    assert refused.code == 1
    assert f"app.py is already in {tmp_path}; nothing was written" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = AWAY.run("init", str(tmp_path / "file" / "app"))
    assert refused.code == 1
    assert "cannot be written: Not a directory" in refused.err


def test_the_made_app_runs_as_its_readme_says(made: Path, tmp_path: Path) -> None:
    words = {
        line.strip() for line in (made / "README.md").read_text().splitlines() if line.startswith("    ")
    }
    assert {"headrace run app:app", "headrace query app:app pages"} < words
    log = tmp_path / "run.log"
    with open(log, "wb") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "run", "app:app"],
            cwd=made,
            env=AWAY.environment(QUICK),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            watch_process(run, "headrace run", log)
            found: Any = until(lambda: re.search(r"log at (\S+),", log.read_text()), "the log")
            event = b'{"visit_id": "v1", "page": "/", "at": "2026-01-31T12:00:00Z"}\n'
            Headrace(found.group(1)).ok("produce", "visits", stdin=event)

            found = until(
                lambda: in_folder(made, "query", "app:app", "pages", "--json").stdout,
                "a row of the view",
                timeout_s=800,
            )
            row = json.loads(found)
            unwatch(run)
            assert (row["page"], row["visits"], row["last_at"]) == ("/", 1, "2026-01-31T12:00:00.000000Z")
            run.send_signal(signal.SIGINT)
            assert run.wait(120) in (0, 130), log.read_text()
        finally:
            unwatch(run)
            if run.poll() is None:
                run.kill()
                run.wait()


def test_the_made_test_passes(made: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=made,
        env=AWAY.environment(QUICK),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
