"""Runs the code of a Markdown page as its reader would: block by block, from the top, in an empty folder.

``python`` blocks share one namespace. In ``console`` blocks a line ``$ command`` is run by bash, ``> `` continues it,
and the lines below are what it must print, where ``...`` stands for anything. A ``headrace broker`` command is the
reader's other terminal: it keeps running until the page ends, and must then stop cleanly. The page's address
``127.0.0.1:9092`` becomes a free port. ``make`` cannot run inside its own tests, so its targets are only looked up.
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
# Blocks of these kinds are read, not run; any other kind is refused, so that no code goes untried.
PLAIN = {"text", "toml", "json", "ini", "diff", "mermaid"}
# Run in Chromium: tests/remote/test_browser.py, tests/browser/test_sections.py.
IN_A_BROWSER = {"js"}
_COMMAND_S_MAX = 240
_READY_S_MAX = 120
_PROGRESS = re.compile(r"\w+: \d+ of \d+ MB, \d+ %")


class SnippetFailed(AssertionError):
    """A page does not do what it says."""


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
    """The fenced blocks of a page, each with the line on which its text begins."""
    kind: str | None = None
    begin = 0
    held: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.startswith("```"):
            held.append(line)
        elif kind is None:
            kind, begin, held = line[3:].strip(), number + 1, []
        else:
            yield Block(kind, begin, "\n".join(held))
            kind = None
    if kind is not None:
        raise SnippetFailed(f"line {begin - 1}: a block that begins here never ends")


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            found.append(Command(number, line[2:]))
        elif not found:
            raise SnippetFailed(f"line {number}: a console block begins with '$ ' and a command")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].text += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def matches(expected: list[str], printed: str) -> bool:
    """Whether the output is as written, with ``...`` for anything, within a line or as a line of its own. Lines of
    progress, which come where a command takes more than two seconds, do not count.
    """
    text = "\n".join(line.rstrip() for line in expected).strip("\n")
    pattern = "".join(".*?" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", text))
    lines = (line.rstrip() for line in printed.splitlines() if not _PROGRESS.fullmatch(line))
    actual = "\n".join(lines).strip("\n")
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


class Reader:
    """Someone who follows one page in ``folder``."""

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

    def follow(self) -> None:
        text = self.page.read_text(encoding="utf-8")
        brings_its_own = "$ headrace broker" in text
        try:
            for block in blocks(text):
                if block.kind == "python":
                    self._run_python(block)
                elif block.kind == "console":
                    for command in commands(block):
                        needs_broker = command.text.startswith("headrace ") and "--help" not in command.text
                        if needs_broker and self.broker is None and not brings_its_own:
                            self._start_broker(
                                Command(command.line, "headrace broker --data broker-data", ["..."])
                            )
                        self._run(command)
                elif block.kind not in PLAIN | IN_A_BROWSER:
                    raise self._failed(block.line, f"a block of kind '{block.kind}' would never be tried")
        finally:
            self._stop_broker()

    def _run(self, command: Command) -> None:
        if command.text.startswith("make "):
            self._look_up_target(command)
        elif command.text.startswith("headrace broker") and "--help" not in command.text:
            self._start_broker(command)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self._localised(command.text)],
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
                raise self._failed(
                    command.line, f"{command.text}\nended with {done.returncode}:\n{done.stdout}"
                )
            self._compare(command, done.stdout)

    def _run_python(self, block: Block) -> None:
        # Blank lines in front keep the page's line numbers in a traceback.
        text = "\n" * (block.line - 1) + self._localised(block.text)
        # What this file asks of the future its pages do not.
        code = compile(text, str(self.page), "exec", dont_inherit=True)
        with contextlib.chdir(self.folder):
            exec(code, self.namespace)

    def _start_broker(self, command: Command) -> None:
        text = self._localised(command.text)
        if self.address not in text:
            text += f" --listen {self.address}"
        output = self.folder / ".broker-output"
        with open(output, "wb") as said:
            self.broker = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
            )
        deadline = time.monotonic() + _READY_S_MAX
        while not (printed := output.read_text(encoding="utf-8")).endswith("\n"):
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise self._failed(command.line, f"{text}\ndid not become ready:\n{printed}")
            time.sleep(0.05)
        self._compare(command, printed)

    def _stop_broker(self) -> None:
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            code = self.broker.wait(_READY_S_MAX)
            self.broker = None
            if code != 0:
                raise self._failed(0, f"the broker did not stop cleanly: {code}")

    def _look_up_target(self, command: Command) -> None:
        target = command.text.split()[1]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        if re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) is None:
            raise self._failed(command.line, f"the Makefile has no target {target}")

    def _compare(self, command: Command, printed: str) -> None:
        expected = [self._localised(line) for line in command.expected]
        if not matches(expected, printed):
            wanted = "\n".join(expected)
            raise self._failed(
                command.line, f"{command.text}\nshould print:\n{wanted}\nbut printed:\n{printed}"
            )

    def _localised(self, text: str) -> str:
        return text.replace(ADDRESS, self.address)

    def _failed(self, line: int, what: str) -> SnippetFailed:
        return SnippetFailed(f"{self.page.name} line {line}: {what}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
