"""What the shell is offered when someone presses Tab."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.app import COMMANDS
from tests.cli.runner import COMMAND, Headrace
from tests.support.server import free_port

Fresh = Callable[..., str]


def offered(headrace: Headrace, line: str, shell: str = "bash") -> list[str]:
    """As each shell's own script asks, with the cursor at the end of the line."""
    env = {"_HEADRACE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = headrace.run(env=env)
    assert (result.code, result.err) == (0, "")
    return result.lines


@pytest.fixture
def named(headrace: Headrace, fresh: Fresh) -> tuple[str, str]:
    topic, group = fresh("completed"), fresh("completing")
    headrace.ok("topic", "create", topic)
    headrace.ok("group", "seek", group, "--to", "end", "--topic", topic)
    return topic, group


@pytest.mark.parametrize(
    "line",
    [
        "topic describe ",
        "topic delete ",
        "consume ",
        "produce ",
        "topics alter ",
        "group seek g --topic ",
        "consume -n 3 ",
    ],
)
def test_topic_names_are_offered_where_a_topic_is_meant(
    headrace: Headrace, named: tuple[str, str], line: str
) -> None:
    topic, _ = named
    assert topic in offered(headrace, f"headrace {line}")
    assert offered(headrace, f"headrace {line}{topic[:-2]}") == [topic]


@pytest.mark.parametrize("line", ["group describe ", "lag ", "consume t -g ", "group delete "])
def test_group_names_are_offered_where_a_group_is_meant(
    headrace: Headrace, named: tuple[str, str], line: str
) -> None:
    _, group = named
    assert group in offered(headrace, f"headrace {line}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_the_names_in_its_own_form(
    headrace: Headrace, named: tuple[str, str], shell: str
) -> None:
    topic, _ = named
    said = "\n".join(offered(headrace, f"headrace topic describe {topic[:-2]}", shell))
    assert said == (f"_arguments '*: :((\"{topic}\"))'" if shell == "zsh" else topic)


def test_the_broker_on_the_line_is_the_one_that_is_asked(headrace: Headrace, named: tuple[str, str]) -> None:
    topic, _ = named
    away = Headrace(f"127.0.0.1:{free_port()}")
    assert topic in offered(away, f"headrace topic describe -b {headrace.bootstrap} ")
    assert topic in offered(away, f"headrace -b {headrace.bootstrap} topic describe ")


def test_without_a_broker_there_are_no_names_and_no_noise() -> None:
    away = Headrace(f"127.0.0.1:{free_port()}")
    assert offered(away, "headrace topic describe ") in ([], [""])
    assert offered(away, "headrace group describe ") in ([], [""])


def test_commands_verbs_options_and_choices_are_offered() -> None:
    away = Headrace("127.0.0.1:1")
    assert offered(away, "headrace ") == [entry.name for entry in COMMANDS]
    assert "add-partitions" in offered(away, "headrace topic ")
    assert offered(away, "headrace produce t --acks ") == ["all", "-1", "1", "0"]
    assert "--durability" in offered(away, "headrace broker --d")


def test_bash_completes_a_topic_name_with_the_script_that_is_shown(
    headrace: Headrace, named: tuple[str, str], tmp_path: Path
) -> None:
    topic, _ = named
    script = headrace.call(env={"_HEADRACE_COMPLETE": "source_bash"}).out
    (tmp_path / "headrace.bash").write_text(script)
    steps = f"""
        PATH={COMMAND.parent}:$PATH
        source {tmp_path}/headrace.bash
        COMP_WORDS=(headrace topic describe {topic[:-2]}) COMP_CWORD=3
        $(complete -p headrace | sed 's/.*-F \\([^ ]*\\) .*/\\1/') headrace
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", steps], env=headrace.environment(), capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.stderr) == (f"{topic}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_every_shell(shell: str) -> None:
    script = Headrace("127.0.0.1:1").call(env={"_HEADRACE_COMPLETE": f"source_{shell}"}).out
    assert f"complete_{shell}" in script
