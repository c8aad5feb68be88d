"""Output on a terminal: colours unless they are disabled, and formatted JSON."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable, Mapping

import pytest

from tests.cli.runner import Headrace

Fresh = Callable[..., str]


def on_a_terminal(headrace: Headrace, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Run the command on a pseudo-terminal; return standard output and error together."""
    controller, terminal = pty.openpty()
    with headrace.started(*words, stdin=terminal, stdout=terminal, stderr=terminal, env=env) as process:
        os.close(terminal)
        output = b""
        while True:
            try:
                chunk = os.read(controller, 65_536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        process.wait(30)
        os.close(controller)
        return output.decode()


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_need_a_terminal_and_no_no_color(
    headrace: Headrace, fresh: Fresh, env: dict[str, str], coloured: bool
) -> None:
    name = fresh()
    headrace.ok("topic", "create", name)
    assert ("\x1b[" in on_a_terminal(headrace, "topic", "list", env=env)) is coloured
    error = on_a_terminal(headrace, "topic", "describe", "nope", env=env)
    assert "does not exist" in error
    assert ("\x1b[31m" in error) is coloured


def test_no_colour_reaches_a_pipe(headrace: Headrace) -> None:
    assert "\x1b" not in headrace.ok("topic", "list").out
    assert "\x1b" not in headrace.run("topic", "describe", "nope").err


def test_a_terminal_gets_json_over_several_lines_by_default(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    headrace.ok("produce", topic, "-q", stdin=b"x\n")
    assert '{\r\n  "topic"' in on_a_terminal(headrace, "consume", topic, "--exit")
    assert '{"topic"' in on_a_terminal(headrace, "consume", topic, "--exit", "--json")


def test_quiet_leaves_only_data_and_errors(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    silent = headrace.ok("produce", topic, "--quiet", stdin=b"x\n")
    assert (silent.out, silent.err) == ("", "")
    assert headrace.ok("produce", topic, stdin=b"x\n").err == "1 record delivered\n"


def test_verbose_shows_the_clients_log_and_the_trace(headrace: Headrace) -> None:
    result = headrace.run("topic", "describe", "nope", "-v")
    assert "Traceback" in result.err
    assert "HR-CLI-TOPIC-UNKNOWN" in result.err
    logged = headrace.ok("topic", "list", "-v", "-X", "debug=protocol")
    assert "MetadataRequest" in logged.err
