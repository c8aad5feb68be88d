"""``headrace doctor``: what is missing is named with the next step, and the exit code says whether it is needed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Headrace
from tests.support.embedded import start_headrace
from tests.support.server import Server
from tools.places import cache_dir

AWAY = Headrace("")
APP = """
from headrace import App
app = App("small")
{more}
"""


def findings(
    tmp_path: Path, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and what was found by check."""
    own = {"HEADRACE_CACHE": str(cache_dir()), "HEADRACE_LOG__LISTEN": "127.0.0.1:0"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "doctor", "--json", "-d", str(tmp_path / "data"), *words],
        env=AWAY.environment({**own, **(env or {})}),
        cwd=cwd or tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        one = json.loads(line)
        found.setdefault(one["check"], []).append(one)
    assert done.stderr == ""
    return done.returncode, found


def states(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {check: one["state"] for check, every in found.items() for one in every}


def test_with_everything_there_the_exit_code_is_0_and_nothing_is_made(tmp_path: Path) -> None:
    code, found = findings(tmp_path)
    assert code == 0
    needed = {"python", "pyspark", "pyarrow", "pandas", "java", "jars", "data", "port"}
    assert {check for check, state in states(found).items() if state == "ok"} >= needed
    assert list(tmp_path.iterdir()) == []


def test_each_thing_that_is_missing_is_named_with_its_next_step(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    (tmp_path / "jars").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, found = findings(
            tmp_path,
            env={
                "HEADRACE_LOG__LISTEN": f"127.0.0.1:{taken.getsockname()[1]}",
                "HEADRACE_SPARK__JARS": str(tmp_path / "jars"),
                "HEADRACE_SPARK__MASTER": "spark://127.0.0.1:1",
                "HEADRACE_SPARK__DRIVER_MEMORY": "plenty",
            },
        )
    assert code == 1
    missing = {one["check"]: one for every in found.values() for one in every if one["state"] == "missing"}
    assert set(missing) == {"data", "jars", "port", "master"}
    assert all(one["hint"] for one in missing.values())
    assert "is not a folder" in missing["data"]["text"]
    assert "kafka-clients-3.9.2.jar is missing" in missing["jars"]["text"]
    assert "another process has it" in missing["port"]["text"]
    assert "does not answer at 127.0.0.1:1" in missing["master"]["text"]


def test_a_damaged_jar_and_a_memory_that_is_none_are_found(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for path in (cache_dir() / "jars").glob("*.jar"):
        (tmp_path / "jars" / path.name).symlink_to(path)
    (tmp_path / "jars" / "commons-pool2-2.13.1.jar").unlink()
    (tmp_path / "jars" / "commons-pool2-2.13.1.jar").write_bytes(b"half")
    env = {"HEADRACE_SPARK__JARS": str(tmp_path / "jars"), "HEADRACE_SPARK__DRIVER_MEMORY": "plenty"}
    code, found = findings(tmp_path, env=env)
    assert code == 1
    assert "commons-pool2-2.13.1.jar is damaged" in found["jars"][0]["text"]
    assert "'plenty'" in found["memory"][0]["text"]


def test_without_java_the_ways_to_get_one_are_named(tmp_path: Path) -> None:
    """An old one stands in for none: which runtimes the system's own folders have, a test cannot change."""
    program = (
        "import sys; from pathlib import Path; from headrace.flow import java; java.SYSTEM = Path('/nowhere');"
        "from headrace.cli import main; sys.argv = ['headrace', 'doctor']; sys.exit(main())"
    )
    env = AWAY.environment({"PATH": str(tmp_path), "HEADRACE_LOG__LISTEN": "127.0.0.1:0"})
    env.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert "✗ Spark runs on Java 17 or newer, and none was found\n    next step: pip install" in done.stdout
    assert done.stdout.endswith("\n1 missing\n")


def test_brokers_that_were_named_are_tried(tmp_path: Path, embedded: Server) -> None:
    code, found = findings(tmp_path, "-b", embedded.bootstrap)
    assert (code, found["log"][0]["state"]) == (0, "ok")
    code, found = findings(tmp_path, "-b", "127.0.0.1:1")
    assert (code, found["log"][0]["state"]) == (1, "missing")
    assert "connection refused" in found["log"][0]["text"]


def test_a_data_directory_that_a_broker_has_is_in_use(tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "server")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log").symlink_to(tmp_path / "server" / "data")
    try:
        code, found = findings(tmp_path)
        assert code == 0
        assert (found["log"][0]["state"], "is in use" in found["log"][0]["text"]) == ("optional", True)
    finally:
        server.stop()
    assert "port" in findings(tmp_path)[1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("app.topic('facts')", "topic 'facts' has no schema"),
        ("import no_such_module", "no_such_module"),
        ("1 / 0", "division by zero"),
    ],
)
def test_an_app_with_a_mistake_is_told_with_its_line(tmp_path: Path, more: str, says: str) -> None:
    (tmp_path / "small.py").write_text(APP.format(more=more))
    code, found = findings(tmp_path, "small:app")
    assert code == 1
    assert found["app"][0]["state"] == "missing"
    assert says in found["app"][0]["text"]
    assert "small.py:4" in found["app"][0]["text"]


def test_a_store_that_cannot_be_opened_is_found_and_an_app_without_flows_needs_no_spark(
    tmp_path: Path,
) -> None:
    more = "from dataclasses import dataclass\n@dataclass\nclass Fact:\n    name: str\n"
    more += "app.view('rows', app.table('table', Fact, key='name'))"
    (tmp_path / "small.py").write_text(APP.format(more=more))
    code, found = findings(tmp_path, "small:app", env={"HEADRACE_SPARK__JARS": str(tmp_path)})
    assert (code, found["store"][0]["state"], "jars" in found) == (0, "ok", False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "small.db").write_bytes(os.urandom(8192))
    code, found = findings(tmp_path, "small:app")
    assert (code, found["store"][0]["state"]) == (1, "missing")
    assert "file is not a database" in found["store"][0]["text"]
