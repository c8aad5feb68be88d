"""``headrace doctor`` names what is missing and the next step; its exit code shows whether it is required."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from headrace.cli.doctor import machine
from tests.cli.runner import Headrace
from tools.paths import cache_dir

WITHOUT_BROKER = Headrace("")
APP = """
from headrace import App
app = App("small")
{declaration}
"""


def findings(
    tmp_path: Path, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Run doctor. Return its exit code, and its findings by check."""
    defaults = {"HEADRACE_CACHE": str(cache_dir()), "HEADRACE_LOG__LISTEN": "127.0.0.1:0"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "doctor", "--json", "-d", str(tmp_path / "data"), *words],
        env=WITHOUT_BROKER.environment({**defaults, **(env or {})}),
        cwd=cwd or tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    checks: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        finding = json.loads(line)
        checks.setdefault(finding["check"], []).append(finding)
    assert done.stderr == ""
    return done.returncode, checks


def states(checks: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {check: finding["state"] for check, check_findings in checks.items() for finding in check_findings}


def test_doctor_exits_with_0_and_creates_nothing_when_nothing_is_missing(tmp_path: Path) -> None:
    code, checks = findings(tmp_path)
    assert code == 0
    needed = {"python", "pyspark", "pyarrow", "pandas", "java", "jars", "data", "limits", "port"}
    assert {check for check, state in states(checks).items() if state == "ok"} >= needed
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_each_missing_thing_with_its_next_step(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    (tmp_path / "jars").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        code, checks = findings(
            tmp_path,
            env={
                "HEADRACE_LOG__LISTEN": f"127.0.0.1:{occupied.getsockname()[1]}",
                "HEADRACE_SPARK__JARS": str(tmp_path / "jars"),
                "HEADRACE_SPARK__MASTER": "spark://127.0.0.1:1",
                "HEADRACE_SPARK__DRIVER_MEMORY": "plenty",
            },
        )
    assert code == 1
    missing = {
        finding["check"]: finding
        for check_findings in checks.values()
        for finding in check_findings
        if finding["state"] == "missing"
    }
    assert set(missing) == {"data", "jars", "port", "master"}
    assert all(finding["hint"] for finding in missing.values())
    assert "is not a folder" in missing["data"]["text"]
    assert "kafka-clients-3.9.2.jar is missing" in missing["jars"]["text"]
    assert "another process uses it" in missing["port"]["text"]
    assert "does not respond at 127.0.0.1:1" in missing["master"]["text"]


def test_a_damaged_jar_and_an_invalid_memory_size_are_found(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for path in (cache_dir() / "jars").glob("*.jar"):
        (tmp_path / "jars" / path.name).symlink_to(path)
    (tmp_path / "jars" / "commons-pool2-2.13.1.jar").unlink()
    (tmp_path / "jars" / "commons-pool2-2.13.1.jar").write_bytes(b"half")
    env = {"HEADRACE_SPARK__JARS": str(tmp_path / "jars"), "HEADRACE_SPARK__DRIVER_MEMORY": "plenty"}
    code, checks = findings(tmp_path, env=env)
    assert code == 1
    assert "commons-pool2-2.13.1.jar is damaged" in checks["jars"][0]["text"]
    assert "'plenty'" in checks["memory"][0]["text"]


def test_without_java_doctor_names_the_ways_to_get_it(tmp_path: Path) -> None:
    """The system folders, which may have a Java runtime, are replaced by a folder that does not exist."""
    program = (
        "import sys; from pathlib import Path; from headrace.flow.spark import java; java.SYSTEM = Path('/nowhere');"
        "from headrace.cli import main; sys.argv = ['headrace', 'doctor']; sys.exit(main())"
    )
    env = WITHOUT_BROKER.environment({"PATH": str(tmp_path), "HEADRACE_LOG__LISTEN": "127.0.0.1:0"})
    env.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert (
        "✗ Spark needs Java 17 or newer, but no such Java was found\n    next step: pip install"
        in done.stdout
    )
    assert done.stdout.endswith("\n1 missing\n")


def test_a_taken_address_of_the_web_ui_is_missing_only_if_it_is_configured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        listen = f"127.0.0.1:{occupied.getsockname()[1]}"
        code, checks = findings(tmp_path, env={"HEADRACE_SERVE__LISTEN": listen})
    assert (code, checks["server"][0]["state"]) == (1, "missing")
    assert f"cannot listen on {listen}: another process uses it" in checks["server"][0]["text"]
    code, checks = findings(tmp_path, env={"HEADRACE_SERVE__LISTEN": "off"})
    assert (code, "server" in checks) == (0, False)


def test_low_limits_of_the_system_come_with_the_setting_that_raises_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    limits = {resource.RLIMIT_NOFILE: (256, 256), resource.RLIMIT_NPROC: (resource.RLIM_INFINITY,) * 2}
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    (finding,) = machine.check_limits()
    assert (finding.state, "at most 256 open files" in finding.text) == ("optional", True)
    assert "LimitNOFILE=" in finding.hint
    limits[resource.RLIMIT_NOFILE] = (1_024, 1_048_576)
    (tmp_path / "pids.max").write_text("100\n")
    (finding,) = machine.check_limits()
    assert "and 100 threads: Spark needs some hundred threads" in finding.text
    (tmp_path / "pids.max").write_text("max\n")
    (finding,) = machine.check_limits()
    assert (finding.state, finding.text) == ("ok", "at most 1,048,576 open files, and any number of threads")


def test_doctor_connects_to_configured_brokers(tmp_path: Path, embedded: Server) -> None:
    code, checks = findings(tmp_path, "-b", embedded.bootstrap)
    assert (code, checks["log"][0]["state"]) == (0, "ok")
    code, checks = findings(tmp_path, "-b", "127.0.0.1:1")
    assert (code, checks["log"][0]["state"]) == (1, "missing")
    assert "connection refused" in checks["log"][0]["text"]


def test_a_data_directory_with_a_running_broker_is_in_use(tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "server")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log").symlink_to(tmp_path / "server" / "data")
    try:
        code, checks = findings(tmp_path)
        assert code == 0
        assert (checks["log"][0]["state"], "is in use" in checks["log"][0]["text"]) == (
            "optional",
            True,
        )
    finally:
        server.stop()
    assert "port" in findings(tmp_path)[1]


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("app.topic('facts')", "topic 'facts' has no schema"),
        ("import no_such_module", "no_such_module"),
        ("1 / 0", "division by zero"),
    ],
)
def test_a_mistake_in_an_app_is_reported_with_its_line(
    tmp_path: Path, declaration: str, message: str
) -> None:
    (tmp_path / "small.py").write_text(APP.format(declaration=declaration))
    code, checks = findings(tmp_path, "small:app")
    assert code == 1
    assert checks["app"][0]["state"] == "missing"
    assert message in checks["app"][0]["text"]
    assert "small.py:4" in checks["app"][0]["text"]


def test_doctor_checks_stores_and_skips_spark_for_an_app_without_flows(
    tmp_path: Path,
) -> None:
    declaration = "from dataclasses import dataclass\n@dataclass\nclass Fact:\n    name: str\n"
    declaration += "app.view('rows', app.table('table', Fact, key='name'))"
    (tmp_path / "small.py").write_text(APP.format(declaration=declaration))
    code, checks = findings(tmp_path, "small:app", env={"HEADRACE_SPARK__JARS": str(tmp_path)})
    assert (code, checks["store"][0]["state"], "jars" in checks) == (0, "ok", False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "small.db").write_bytes(os.urandom(8192))
    code, checks = findings(tmp_path, "small:app")
    assert (code, checks["store"][0]["state"]) == (1, "missing")
    assert "file is not a database" in checks["store"][0]["text"]
