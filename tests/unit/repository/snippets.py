"""Runs the code of a Markdown page as its reader would: block by block, from the top, in an empty folder.

``python`` blocks share one namespace. In ``console`` blocks a line ``$ command`` is run by bash, ``> `` continues it,
and the lines below are its expected output, where ``...`` matches anything. A ``headrace broker`` command stands for
the reader's other terminal: it keeps running until the page ends, and must then stop cleanly. The page's address
``127.0.0.1:9092`` becomes a free port. ``make`` cannot run inside its own tests, so only its targets are checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .tracked import ROOT

ADDRESS = "127.0.0.1:9092"
# Blocks of these kinds are not executed. Any other kind is an error, so that no code stays untested.
PLAIN = {"text", "toml", "json", "ini", "diff", "mermaid"}
# These blocks run in Chromium, in tests/remote/test_browser.py, tests/browser/test_sections.py.
IN_A_BROWSER = {"js"}
_COMMAND_S_MAX = 240
_READY_S_MAX = 120
_PROGRESS = re.compile(r"\w+: \d+ of \d+ MB, \d+ %")


class SnippetFailed(AssertionError):
    """The code of a page does not do what the page shows."""


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    text: str


@dataclass
class Command:
    line: int
    text: str
    expected: list[str] = field(default_factory=list)


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, each with the line on which its text begins."""
    kind: str | None = None
    begin = 0
    block_lines: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.startswith("```"):
            block_lines.append(line)
        elif kind is None:
            kind, begin, block_lines = line[3:].strip(), number + 1, []
        else:
            yield Block(kind, begin, "\n".join(block_lines))
            kind = None
    if kind is not None:
        raise SnippetFailed(f"line {begin - 1}: a block that begins here never ends")


def commands(block: Block) -> list[Command]:
    parsed: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            parsed.append(Command(number, line[2:]))
        elif not parsed:
            raise SnippetFailed(f"line {number}: a console block begins with '$ ' and a command")
        elif line.startswith("> ") and not parsed[-1].expected:
            parsed[-1].text += "\n" + line[2:]
        else:
            parsed[-1].expected.append(line)
    return parsed


def matches(expected: list[str], printed: str) -> bool:
    """Return whether the output matches the page. ``...`` matches anything, within a line or as a line of its own.
    Progress lines, which a command prints after two seconds, are ignored.
    """
    text = "\n".join(line.rstrip() for line in expected).strip("\n")
    pattern = "".join(".*?" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", text))
    lines = (line.rstrip() for line in printed.splitlines() if not _PROGRESS.fullmatch(line))
    actual = "\n".join(lines).strip("\n")
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


class Reader:
    """Runs the code of one page in ``folder``, as a reader would."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.address = f"127.0.0.1:{_free_port()}"
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.broker: subprocess.Popen[bytes] | None = None
        venv = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{venv}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP_SERVERS": self.address,
        }

    def run_page(self) -> None:
        text = self.page.read_text(encoding="utf-8")
        starts_a_broker = "$ headrace broker" in text
        try:
            for block in blocks(text):
                if block.kind == "python":
                    self._run_python(block)
                elif block.kind == "console":
                    for command in commands(block):
                        needs_broker = command.text.startswith("headrace ") and "--help" not in command.text
                        if needs_broker and self.broker is None and not starts_a_broker:
                            self._start_broker(
                                Command(command.line, "headrace broker --data broker-data", ["..."])
                            )
                        self._run(command)
                elif block.kind not in PLAIN | IN_A_BROWSER:
                    raise self._failure(block.line, f"a block of kind '{block.kind}' would never be run")
        finally:
            self._stop_broker()

    def _run(self, command: Command) -> None:
        if command.text.startswith("make "):
            self._find_target(command)
        elif command.text.startswith("headrace broker") and "--help" not in command.text:
            self._start_broker(command)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self._with_address(command.text)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_COMMAND_S_MAX,
                check=False,
            )
            if done.returncode != 0:
                raise self._failure(
                    command.line, f"{command.text}\nexited with code {done.returncode}:\n{done.stdout}"
                )
            self._compare(command, done.stdout)

    def _run_python(self, block: Block) -> None:
        # Leading blank lines keep the page's line numbers in a traceback.
        text = "\n" * (block.line - 1) + self._with_address(block.text)
        # Pages do not inherit the __future__ imports of this file.
        code = compile(text, str(self.page), "exec", dont_inherit=True)
        with contextlib.chdir(self.folder):
            exec(code, self.namespace)

    def _start_broker(self, command: Command) -> None:
        text = self._with_address(command.text)
        if self.address not in text:
            text += f" --listen {self.address}"
        output = self.folder / ".broker-output"
        with open(output, "wb") as output_file:
            self.broker = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self.folder,
                env=self.environment,
                stdout=output_file,
                stderr=output_file,
            )
        deadline = time.monotonic() + _READY_S_MAX
        while not (printed := output.read_text(encoding="utf-8")).endswith("\n"):
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise self._failure(command.line, f"{text}\ndid not become ready:\n{printed}")
            time.sleep(0.05)
        self._compare(command, printed)

    def _stop_broker(self) -> None:
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            code = self.broker.wait(_READY_S_MAX)
            self.broker = None
            if code != 0:
                raise self._failure(0, f"the broker did not stop cleanly: {code}")

    def _find_target(self, command: Command) -> None:
        target = command.text.split()[1]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        if re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) is None:
            raise self._failure(command.line, f"the Makefile has no target {target}")

    def _compare(self, command: Command, printed: str) -> None:
        expected = [self._with_address(line) for line in command.expected]
        if not matches(expected, printed):
            expected_text = "\n".join(expected)
            raise self._failure(
                command.line, f"{command.text}\nshould print:\n{expected_text}\nbut printed:\n{printed}"
            )

    def _with_address(self, text: str) -> str:
        return text.replace(ADDRESS, self.address)

    def _failure(self, line: int, reason: str) -> SnippetFailed:
        return SnippetFailed(f"{self.page.name} line {line}: {reason}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
