"""Each rule of the test suite fails for a small suite that violates the rule."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.plugins.capabilities import Capability, read_table, unproven
from tools.paths import ROOT

pytest_plugins = ["pytester"]

PLUGINS = ("-p", "tests.plugins.no_skips", "-p", "tests.plugins.capabilities", "-p", "no:cacheprovider")
SKIPS = {
    "mark": "@pytest.mark.skip(reason='no disk')\ndef test_a(): pass",
    "call": "def test_a(): pytest.skip('no disk')",
    "module": "pytest.skip('no disk', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_module', reason='no disk')",
    "fixture": "@pytest.fixture\ndef disk(): pytest.skip('no disk')\ndef test_a(disk): pass",
    "expected": "@pytest.mark.xfail(reason='no disk')\ndef test_a(): assert False",
    "unexpected": "@pytest.mark.xfail(reason='no disk')\ndef test_a(): pass",
}
HEAD = "| No. | Capability | How a user does it | Shown by |\n|---|---|---|---|\n"


@pytest.fixture(autouse=True)
def only_our_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'src'}")


def test_a_skipped_or_xfailed_test_fails_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**{f"test_{name}": f"import pytest\n{body}" for name, body in SKIPS.items()})
    pytester.makepyfile(test_plain="def test_a(): pass")
    result = pytester.runpytest_subprocess(*PLUGINS, "--continue-on-collection-errors", "-rN")
    # Two fail at collection and two at setup, which pytest counts as errors.
    result.assert_outcomes(failed=3, errors=4, passed=1)
    assert result.stdout.str().count("no disk\nA skipped test counts as failed") == len(SKIPS)


def test_a_run_fails_if_a_test_process_dies(pytester: pytest.Pytester) -> None:
    steps = "import os, pytest\n@pytest.mark.parametrize('step', range(6))\ndef test_a(step):\n    "
    pytester.makepyfile(test_dies=steps + "step == 3 and os.abort()", test_lives=steps + "pass")
    ours = ("-p", "xdist", "-p", "tests.plugins.lost_workers", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*ours, "-n", "2", "--dist", "loadfile", timeout=240)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["the test process gw? ended by SIGABRT in test_dies.py::test_a[[]3[]]"])


def test_only_tests_on_apache_kafka_are_retried_and_each_retry_is_reported(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        made = []

        @pytest.fixture
        def fresh():
            made.append(object())
            yield len(made)

        @pytest.mark.parametrize("cluster", [pytest.param("kafka", marks=pytest.mark.kafka_half)])
        def test_reference(cluster, fresh):
            assert fresh == 3, "Kafka was busy"

        @pytest.mark.kafka_half
        def test_lost(fresh):
            assert False, "Kafka was lost"

        @pytest.fixture
        def kafka_server():
            return "kafka"

        def test_ours(kafka_half, fresh):
            assert fresh == 8, "once"

        def test_compared(kafka_half):
            ours, theirs = 2, []

            def observe(server):
                theirs.append(object())
                return len(theirs)

            def check(found):
                assert found == ours, f"observation {found}"

            kafka_half.compare(observe, check)

        def test_ours_differs(kafka_half):
            def check(found):
                assert found == 2, f"not {found}"

            kafka_half.compare(lambda server: 1, check)
        """
    )
    for processes in ((), ("-p", "xdist", "-n", "1")):
        result = pytester.runpytest_subprocess(
            "-p",
            "tests.plugins.kafka_half",
            "-p",
            "_hypothesis_pytestplugin",
            "-p",
            "no:cacheprovider",
            "--kafka",
            "live",
            *processes,
        )
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        output = result.stdout.str()
        retries = output[output.index("retried on Apache Kafka") :]
        for message, count in (
            ("Kafka was busy", 2),
            ("Kafka was lost", 2),
            ("observation 1", 1),
            ("not 1", 2),
        ):
            assert (
                len(re.findall(rf"AssertionError: {message}|^{message}", retries, re.MULTILINE)) >= count
            ), message
        assert re.search(r"3 failed, 2 passed, 7 retried on Apache Kafka in", output.splitlines()[-1])


@pytest.mark.parametrize("failing", ["test", "run FOR=20", "check", None])
def test_the_ci_script_stops_at_the_first_failing_command(tmp_path: Path, failing: str | None) -> None:
    make, done = tmp_path / "make", tmp_path / "done"
    make.write_text(f'#!/bin/sh\necho "$*" >> {done}\ntest "$*" != "{failing}"\n')
    make.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    exit_code = subprocess.run(
        [ROOT / ".ci" / "run"], env={**os.environ, "PATH": path}, check=False
    ).returncode
    commands = ["test", "run FOR=20", "check"]
    assert (exit_code == 0) == (failing is None)
    assert done.read_text().splitlines() == commands[: commands.index(failing) + 1 if failing else None]


def test_a_capability_is_shown_if_its_tests_run_and_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_product="def test_it_works(): pass\ndef test_more(): pass")
    table = HEAD + "| L1 | Topics | `x` | `test_product.py::test_it_works` |\n"
    (pytester.mkdir("docs") / "capabilities.md").write_text(table, encoding="utf-8")
    whole = pytester.runpytest_subprocess(*PLUGINS, "--capabilities")
    assert whole.ret == pytest.ExitCode.OK
    whole.stdout.fnmatch_lines(["1 capabilities of * shown"])
    part = pytester.runpytest_subprocess(*PLUGINS, "--capabilities", "-k", "more")
    assert part.ret == pytest.ExitCode.TESTS_FAILED
    part.stdout.fnmatch_lines(["L1: test_product.py::test_it_works did not run"])


@pytest.mark.parametrize(
    ("outcomes", "messages"),
    [
        ({"a.py::test_b": True}, []),
        ({"a.py::test_b[1]": True, "a.py::test_b[2]": True}, []),
        ({"a.py::test_b::test_c": True}, []),
        ({"a.py::test_b[1]": True, "a.py::test_b[2]": False}, ["L1: a.py::test_b did not pass"]),
        ({"a.py::test_because": True}, ["L1: a.py::test_b did not run"]),
        ({}, ["L1: a.py::test_b did not run"]),
    ],
)
def test_every_case_of_a_named_test_counts(outcomes: dict[str, bool], messages: list[str]) -> None:
    assert unproven([Capability("L1", "Topics", "x", ("a.py::test_b",))], outcomes) == messages


def test_a_capability_without_a_test_is_refused() -> None:
    assert unproven(read_table(HEAD + "| L1 | Topics | `x` | obvious |"), {}) == ["L1: names no test"]


@pytest.mark.parametrize(
    "text", ["", "| No. | What |\n|--|--|\n", HEAD + "| L1 | Topics | | `a.py::b` |", HEAD + "| L1 |"]
)
def test_a_table_with_other_columns_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must begin with the columns|filled cells"):
        read_table(text)
