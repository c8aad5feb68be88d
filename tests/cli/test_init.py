"""``headrace init`` creates an app that is valid and runs, and never overwrites a file."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faults.wait import until, unwatch, watch_process
from tests.cli.runner import Headrace
from tests.cli.systemd import Systemd
from tools.java import QUICK_START

WITHOUT_BROKER = Headrace("")
QUICK = {
    "HEADRACE_SPARK__JAVA_OPTIONS": " ".join(QUICK_START),
    "HEADRACE_SPARK__MASTER": "local[2]",
    "HEADRACE_LOG__LISTEN": "127.0.0.1:0",
}


@pytest.fixture
def app_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "My Pages"
    WITHOUT_BROKER.ok("init", str(folder))
    return folder


def in_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words],
        cwd=folder,
        env=WITHOUT_BROKER.environment(QUICK),
        capture_output=True,
        text=True,
        timeout=480,
    )


def test_the_created_app_has_no_mistakes_and_the_name_of_its_folder(app_folder: Path) -> None:
    findings = [
        json.loads(line) for line in in_folder(app_folder, "doctor", "app:app", "--json").stdout.splitlines()
    ]
    about = [
        (finding["state"], finding["text"]) for finding in findings if finding["check"] in ("app", "store")
    ]
    assert about == [
        ("ok", "app my-pages: 2 topics, 1 flows, 1 views"),
        ("ok", "headrace-data/my-pages.db, for pages: the first start creates it"),
    ]
    assert sorted(path.name for path in app_folder.iterdir() if path.name != "__pycache__") == [
        ".gitignore",
        "README.md",
        "app.py",
        "conftest.py",
        "headrace.toml",
        "test_app.py",
    ]


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    refused = WITHOUT_BROKER.run("init", str(tmp_path))
    assert refused.code == 1
    assert f"app.py is already in {tmp_path}; nothing was written" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = WITHOUT_BROKER.run("init", str(tmp_path / "file" / "app"))
    assert refused.code == 1
    assert "cannot write " in refused.err
    assert "Not a directory" in refused.err


def test_the_created_app_runs_as_its_readme_says_and_reports_to_systemd(
    app_folder: Path, tmp_path: Path, systemd: Systemd
) -> None:
    words = {
        line.strip()
        for line in (app_folder / "README.md").read_text().splitlines()
        if line.startswith("    ")
    }
    assert {"headrace run app:app", "headrace query app:app pages"} < words
    log = tmp_path / "run.log"
    with open(log, "wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "run", "app:app"],
            cwd=app_folder,
            env=WITHOUT_BROKER.environment(QUICK | systemd.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        try:
            watch_process(run, "headrace run", log)
            found: Any = until(lambda: re.search(r"log at (\S+),", log.read_text()), "the log")
            event = b'{"visit_id": "v1", "page": "/", "at": "2026-01-31T12:00:00Z"}\n'
            Headrace(found.group(1)).ok("produce", "visits", stdin=event)

            found = until(
                lambda: in_folder(app_folder, "query", "app:app", "pages", "--json").stdout,
                "a row of the view",
                timeout_s=800,
            )
            row = json.loads(found)
            unwatch(run)
            messages = systemd.wait_for("READY=1")
            assert any("starting flow" in message or "starting the log" in message for message in messages)
            assert (row["page"], row["visits"], row["last_at"]) == ("/", 1, "2026-01-31T12:00:00.000000Z")
            run.send_signal(signal.SIGINT)
            assert run.wait(120) == 130, log.read_text()
            assert "Ctrl-C again stops at once and loses nothing" in log.read_text()
            messages = systemd.wait_for("STOPPING=1")
            assert not any("READY=1" in message for message in messages), "only one process is the service"
        finally:
            unwatch(run)
            if run.poll() is None:
                run.kill()
                run.wait()


def test_the_created_tests_pass(app_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=app_folder,
        env=WITHOUT_BROKER.environment(QUICK),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
