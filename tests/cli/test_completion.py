"""The completions that the shell gets when a user presses Tab."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.servers.server import free_port
from headrace.cli.root import COMMANDS
from tests.cli.runner import COMMAND, Headrace

Fresh = Callable[..., str]


def completions(headrace: Headrace, line: str, shell: str = "bash") -> list[str]:
    """Return the completions at the end of the line. Calls the command like the shell's completion script."""
    env = {"_HEADRACE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = headrace.run(env=env)
    assert (result.code, result.err) == (0, "")
    return result.lines


@pytest.fixture
def topic_and_group(headrace: Headrace, fresh: Fresh) -> tuple[str, str]:
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
def test_topic_names_complete_a_topic_argument(
    headrace: Headrace, topic_and_group: tuple[str, str], line: str
) -> None:
    topic, _ = topic_and_group
    assert topic in completions(headrace, f"headrace {line}")
    assert completions(headrace, f"headrace {line}{topic[:-2]}") == [topic]


@pytest.mark.parametrize("line", ["group describe ", "lag ", "consume t -g ", "group delete "])
def test_group_names_complete_a_group_argument(
    headrace: Headrace, topic_and_group: tuple[str, str], line: str
) -> None:
    _, group = topic_and_group
    assert group in completions(headrace, f"headrace {line}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_the_names_in_its_own_form(
    headrace: Headrace, topic_and_group: tuple[str, str], shell: str
) -> None:
    topic, _ = topic_and_group
    output = "\n".join(completions(headrace, f"headrace topic describe {topic[:-2]}", shell))
    assert output == (f"_arguments '*: :((\"{topic}\"))'" if shell == "zsh" else topic)


def test_completion_uses_the_broker_of_the_command_line(
    headrace: Headrace, topic_and_group: tuple[str, str]
) -> None:
    topic, _ = topic_and_group
    without_broker = Headrace(f"127.0.0.1:{free_port()}")
    assert topic in completions(without_broker, f"headrace topic describe -b {headrace.bootstrap} ")
    assert topic in completions(without_broker, f"headrace -b {headrace.bootstrap} topic describe ")


def test_without_a_broker_completion_offers_nothing_and_prints_no_error() -> None:
    without_broker = Headrace(f"127.0.0.1:{free_port()}")
    assert completions(without_broker, "headrace topic describe ") in ([], [""])
    assert completions(without_broker, "headrace group describe ") in ([], [""])


def test_commands_verbs_options_and_choices_are_offered() -> None:
    without_broker = Headrace("127.0.0.1:1")
    assert completions(without_broker, "headrace ") == [entry.name for entry in COMMANDS]
    assert "add-partitions" in completions(without_broker, "headrace topic ")
    assert completions(without_broker, "headrace produce t --acks ") == ["all", "-1", "1", "0"]
    assert "--durability" in completions(without_broker, "headrace broker --d")


def test_the_printed_bash_script_completes_a_topic_name(
    headrace: Headrace, topic_and_group: tuple[str, str], tmp_path: Path
) -> None:
    topic, _ = topic_and_group
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
def test_every_shell_has_a_completion_script(shell: str) -> None:
    script = Headrace("127.0.0.1:1").call(env={"_HEADRACE_COMPLETE": f"source_{shell}"}).out
    assert f"complete_{shell}" in script
