"""Recordings of Apache Kafka replace it as long as neither the test nor Kafka's version changes."""

from __future__ import annotations

import json

import pytest

from tests.plugins import kafka_recordings
from tests.plugins.kafka_recordings import RECORD, code_digest, kafka_version

pytest_plugins = ["pytester"]

PLUGINS = ("-p", "tests.plugins.kafka_half", "-p", "no:cacheprovider")
SUITE = '''
import pytest

starts = []

@pytest.fixture(scope="session")
def kafka_server():
    starts.append(object())
    yield "kafka"

@pytest.fixture(params=["headrace", pytest.param("kafka", marks=pytest.mark.kafka_half)])
def cluster(request):
    return request.getfixturevalue("kafka_server") if request.param == "kafka" else "headrace"

def expected():
    return 3

def test_asserted(cluster):
    """A docstring."""
    assert expected() == 3

def test_compared(kafka_half):
    kafka_half.compare(lambda server: [(server, {1: None})], lambda theirs: check(theirs))

def check(theirs):
    assert theirs == [["kafka", {"1": None}]]

def test_ours():
    assert not starts
'''


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makefile(".ini", pytest="[pytest]\nfilterwarnings = error")
    write(pytester, SUITE)
    return pytester


def write(suite: pytest.Pytester, text: str) -> None:
    folder = suite.path / "tests"
    folder.mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(text, encoding="utf-8")


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    kafka_recordings.forget_sources()
    return suite.runpytest_inprocess(*PLUGINS, *options)


def test_a_recording_replaces_kafka_until_the_test_changes(suite: pytest.Pytester) -> None:
    # Without recordings, all cases run live.
    run(suite, "-k", "asserted or compared").assert_outcomes(passed=3, deselected=1)
    folder = suite.path / "tests" / "recordings" / f"kafka-{kafka_version()}"
    folder.mkdir(parents=True)
    missing = run(suite)
    # The case that runs only against Kafka errors before its first fixture. The case that compares fails.
    missing.assert_outcomes(passed=2, failed=1, errors=1)
    missing.stdout.fnmatch_lines(
        [f"*has no recording of tests/test_it.py::test_asserted*kafka*Record it: {RECORD}"]
    )

    run(suite, "--kafka", "record").assert_outcomes(passed=2, deselected=2)
    file = folder / "test_it.jsonl"
    recorded = {line["case"]: line for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    assert [*recorded] == ["test_asserted[kafka]", "test_compared"]
    assert recorded["test_compared"]["answers"] == [["kafka", {"1": None}]]
    assert "answers" not in recorded["test_asserted[kafka]"]

    replayed = run(suite)
    replayed.assert_outcomes(passed=3, deselected=1)
    replayed.stdout.fnmatch_lines([f"Apache Kafka {kafka_version()}: 1 cases recorded, not run"])

    write(suite, SUITE.replace("A docstring", "Another docstring").replace("test_asserted", "test_stated"))
    run(suite).assert_outcomes(passed=3, deselected=1)
    write(suite, SUITE.replace("return 3", "return 1 + 2"))
    changed = run(suite)
    changed.assert_outcomes(passed=3, errors=1)
    changed.stdout.fnmatch_lines([f"*changed since*Record it again: {RECORD}"])


def test_recording_a_failed_case_removes_its_recording(suite: pytest.Pytester) -> None:
    run(suite, "--kafka", "record").assert_outcomes(passed=2, deselected=2)
    write(
        suite, SUITE.replace('["kafka", {"1": None}]', '["kafka", {"1": 1}]').replace("return 3", "return 4")
    )
    run(suite, "--kafka", "record").assert_outcomes(failed=2, deselected=2)
    file = suite.path / "tests" / "recordings" / f"kafka-{kafka_version()}" / "test_it.jsonl"
    assert file.read_text(encoding="utf-8") == ""


def test_our_answers_are_compared_with_the_recorded_ones(suite: pytest.Pytester) -> None:
    run(suite, "--kafka", "record").assert_outcomes(passed=2, deselected=2)
    file = suite.path / "tests" / "recordings" / f"kafka-{kafka_version()}" / "test_it.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('{"1":null}', '{"1":7}'), encoding="utf-8")
    run(suite).assert_outcomes(passed=2, failed=1, deselected=1)


def test_recordings_are_written_by_one_process(suite: pytest.Pytester) -> None:
    result = run(suite, "-p", "xdist", "-n", "1", "--kafka", "record")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_digest_follows_what_a_test_uses_in_other_modules(suite: pytest.Pytester) -> None:
    helper = suite.path / "tests" / "helper.py"
    helper.write_text("LIMIT = 3\n\ndef used():\n    return LIMIT\n\ndef unused():\n    return 1\n")
    write(suite, "from tests.helper import used\n\ndef test_a():\n    assert used()\n")

    def digest() -> str:
        kafka_recordings.forget_sources()
        return code_digest(suite.path, "tests/test_it.py", "test_a")

    before = digest()
    helper.write_text(helper.read_text().replace("return 1", "return 2") + "# A comment.\n")
    assert digest() == before
    helper.write_text(helper.read_text().replace("LIMIT", "MOST").replace("used", "needed"))
    write(suite, "from tests.helper import needed\n\ndef test_a() -> None:\n    assert needed()\n")
    assert digest() == before
    helper.write_text(helper.read_text().replace("MOST = 3", "MOST = 4"))
    assert digest() != before
