"""The suite's own rules can fail: each is shown on a small suite that breaks it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.plugins.capabilities import Capability, read_table, unproven
from tools.places import ROOT

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
def only_our_plugins(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))


def test_what_is_skipped_or_expected_to_fail_fails_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**{f"test_{name}": f"import pytest\n{body}" for name, body in SKIPS.items()})
    pytester.makepyfile(test_plain="def test_a(): pass")
    result = pytester.runpytest_subprocess(*PLUGINS, "--continue-on-collection-errors", "-rN")
    # Two stop at collection and two at setup, which pytest counts as errors.
    result.assert_outcomes(failed=3, errors=4, passed=1)
    assert result.stdout.str().count("no disk\nA skipped test counts as failed") == len(SKIPS)


def test_a_test_process_that_dies_ends_the_run_as_a_failure(pytester: pytest.Pytester) -> None:
    steps = "import os, pytest\n@pytest.mark.parametrize('step', range(6))\ndef test_a(step):\n    "
    pytester.makepyfile(test_dies=steps + "step == 3 and os.abort()", test_lives=steps + "pass")
    ours = ("-p", "xdist", "-p", "tests.plugins.lost_workers", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*ours, "-n", "2", "--dist", "loadfile", timeout=240)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["the test process gw? ended by SIGABRT in test_dies.py::test_a[[]3[]]"])


def test_only_kafka_s_half_is_retried_and_each_retry_is_printed_and_counted(
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

        @pytest.mark.parametrize("client", ["kafka-python"])
        @pytest.mark.parametrize("cluster", ["headrace"])
        def test_ours(cluster, client, fresh):
            assert fresh == 8, "once"

        def test_compared(kafka_half):
            ours, theirs = 2, []

            def observe():
                theirs.append(object())
                return len(theirs)

            def check(found):
                assert found == ours, f"observation {found}"

            kafka_half.compare(observe, check)

        def test_ours_differs(kafka_half):
            def check(found):
                assert found == 2, f"not {found}"

            kafka_half.compare(lambda: 1, check)
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
            *processes,
        )
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        said = result.stdout.str()
        retries = said[said.index("retried on Apache Kafka") :]
        for why, count in (("Kafka was busy", 2), ("Kafka was lost", 2), ("observation 1", 1), ("not 1", 2)):
            assert len(re.findall(rf"AssertionError: {why}|^{why}", retries, re.MULTILINE)) >= count, why
        assert re.search(r"3 failed, 2 passed, 7 retried on Apache Kafka in", said.splitlines()[-1])


@pytest.mark.parametrize("failing", ["test", "run FOR=20", "check", None])
def test_the_gate_ends_at_the_first_command_that_fails(tmp_path: Path, failing: str | None) -> None:
    make, done = tmp_path / "make", tmp_path / "done"
    make.write_text(f'#!/bin/sh\necho "$*" >> {done}\ntest "$*" != "{failing}"\n')
    make.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run([ROOT / ".ci" / "run"], env={**os.environ, "PATH": path}, check=False).returncode
    commands = ["test", "run FOR=20", "check"]
    assert (ended == 0) == (failing is None)
    assert done.read_text().splitlines() == commands[: commands.index(failing) + 1 if failing else None]


def test_a_claim_holds_while_its_tests_run_and_pass(pytester: pytest.Pytester) -> None:
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
    ("outcomes", "says"),
    [
        ({"a.py::test_b": True}, []),
        ({"a.py::test_b[1]": True, "a.py::test_b[2]": True}, []),
        ({"a.py::test_b::test_c": True}, []),
        ({"a.py::test_b[1]": True, "a.py::test_b[2]": False}, ["L1: a.py::test_b did not pass"]),
        ({"a.py::test_because": True}, ["L1: a.py::test_b did not run"]),
        ({}, ["L1: a.py::test_b did not run"]),
    ],
)
def test_every_case_of_a_named_test_counts(outcomes: dict[str, bool], says: list[str]) -> None:
    assert unproven([Capability("L1", "Topics", "x", ("a.py::test_b",))], outcomes) == says


def test_a_claim_without_a_test_is_refused() -> None:
    assert unproven(read_table(HEAD + "| L1 | Topics | `x` | obvious |"), {}) == ["L1: names no test"]


@pytest.mark.parametrize(
    "text", ["", "| No. | What |\n|--|--|\n", HEAD + "| L1 | Topics | | `a.py::b` |", HEAD + "| L1 |"]
)
def test_a_table_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must begin with the columns|filled cells"):
        read_table(text)
