"""Help loads only the modules that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.cli.root import COMMANDS
from tests.cli.runner import Headrace, Result

WITHOUT_BROKER = Headrace("127.0.0.1:1")
VERBS = [
    "init",
    "doctor",
    "config",
    "broker",
    "produce",
    "consume",
    "lag",
    "graph",
    "serve",
    "token create",
    "token list",
    "token revoke",
    "backup list",
    "backup status",
    "backup check",
    "backup restore",
    "topic create",
    "topic list",
    "topic describe",
    "topic alter",
    "topic add-partitions",
    "topic trim",
    "topic delete",
    "group list",
    "group describe",
    "group seek",
    "group offset-delete",
    "group delete",
    "alert list",
    "alert rules",
    "alert watch",
    "dead list",
    "dead show",
    "dead replay",
    "view list",
    "view describe",
    "view follow",
    "view rebuild",
    "query",
]

LOADED = """
import os, sys
from headrace.cli import main
os._exit = sys.exit
sys.argv = ["headrace", *sys.argv[1:]]
try:
    main()
except SystemExit as system_exit:
    assert not system_exit.code or "--help" not in sys.argv, system_exit.code
finally:
    print("LOADED", *sorted(sys.modules), file=sys.stderr)
"""


def loaded_by(*words: str) -> set[str]:
    """Run a command line. Return the modules that were imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        env=WITHOUT_BROKER.environment(),
        timeout=240,
    )
    assert "LOADED" in done.stderr, done.stderr
    return set(done.stderr.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize(
    "words",
    [["--help"], ["topic", "--help"], ["consume", "--help"], ["broker", "--help"], ["doctor", "--help"]],
)
def test_help_loads_no_client_no_spark_no_broker_and_no_display(words: list[str]) -> None:
    loaded = loaded_by(*words)
    assert "headrace.cli.root" in loaded
    heavy = {"confluent_kafka", "pyspark", "headrace.broker", "headrace.log", "rich", "pydantic", "msgspec"}
    assert not loaded & heavy


def test_the_root_help_loads_no_verb() -> None:
    verbs = {
        name
        for name in loaded_by("--help")
        if name.startswith(("headrace.cli.topic", "headrace.cli.consume"))
    }
    assert verbs == set()


def test_a_command_loads_neither_displays_nor_the_validation_library() -> None:
    """Importing the validation library would double the time of a short command."""
    loaded = loaded_by("topic", "create", "t", "-p", "3", "-c", "retention.ms=1")
    assert "confluent_kafka" in loaded
    assert not loaded & {"rich", "pydantic", "pyspark", "headrace.broker"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_a_usage_line_and_examples(verb: str) -> None:
    shown = WITHOUT_BROKER.run(*verb.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    head, separator, examples = shown.out.partition("\nExamples:\n")
    assert separator
    assert f"Usage: headrace {verb} " in head
    assert f"headrace {verb}" in examples
    assert max(map(len, head.splitlines())) <= 120


def test_the_root_help_lists_every_command_with_its_summary() -> None:
    shown = WITHOUT_BROKER.run("--help").out
    for entry in COMMANDS:
        assert f"  {entry.name:<9}{entry.summary}" in shown
        command_help = WITHOUT_BROKER.run(entry.name, "--help").out
        assert entry.summary.rstrip(".") in " ".join(command_help.split()), entry.name
    assert "Exit codes" in shown


@pytest.mark.parametrize("command_group", ["topic", "group", "view", "alert", "token"])
def test_the_plural_of_a_command_group_is_the_same_command(command_group: str) -> None:
    def verbs(shown: Result) -> str:
        return shown.out.partition("Commands:")[2]

    assert (
        verbs(WITHOUT_BROKER.ok(f"{command_group}s", "--help"))
        == verbs(WITHOUT_BROKER.ok(command_group, "--help"))
        != ""
    )


def test_version_prints_the_package_version() -> None:
    from importlib.metadata import version

    assert WITHOUT_BROKER.call("--version").out == f"headrace {version('headrace')}\n"


def test_a_mistyped_command_suggests_the_nearest_one() -> None:
    result = WITHOUT_BROKER.run("tpic", "list")
    assert result.code == 2
    assert "Did you mean 'topic'" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topic", "create"], "TOPIC"),
        (["topic", "create", "t", "-p", "none"], "'none' is not a whole number"),
        (["topic", "create", "t", "-p", "0"], "0 is below 1"),
        (["topic", "create", "t", "-c", "novalue"], "not of the form key=value"),
        (["consume", "t", "--isolation", "loose"], "'loose' is not one of read_committed, read_uncommitted"),
        (["consume", "t", "-o", "soon"], "'soon' is not an offset or a time"),
        (["consume", "t", "-f", "%q"], "%q is not a field"),
        (["consume", "t", "--filter", "eval(1)"], "character 5 of the filter: expected ="),
        (["consume", "t", "--tail", "3", "-g", "g"], "--tail cannot be combined"),
        (["produce", "t", "-f", "%k%v"], "does not define where %k ends"),
        (["topic", "alter", "t"], "nothing to change"),
        (["topic", "list", "("], "is not a regular expression"),
        (["lag", "--watch", "--fail-above", "1"], "use one of them"),
        (["group", "seek", "g"], "--to"),
        (["group", "seek", "g", "--to", "start", "--topic", ":1"], "is not TOPIC or TOPIC:PARTITIONS"),
        (["topic", "list", "-b", "a:b"], "is not a broker address"),
    ],
)
def test_an_invalid_command_line_exits_with_2_and_an_explanation(words: list[str], message: str) -> None:
    result = WITHOUT_BROKER.run(*words)
    assert (result.code, result.out) == (2, "")
    assert message in " ".join(result.err.split())
