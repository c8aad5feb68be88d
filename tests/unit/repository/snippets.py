"""Runs the code of a Markdown page as its reader would: block by block, from the top, in an empty folder.

``python`` blocks share one namespace. A block ``python FILE`` or ``text FILE`` is the content of a file, and a block
``python >> FILE`` is appended to it. In ``console`` blocks bash runs a line ``$ command``, ``> `` continues it, and the
lines below are its expected output, where ``...`` matches anything. ``cd`` changes the folder for all later blocks.
The page's addresses ``127.0.0.1:9092`` and ``127.0.0.1:8180`` become free ports.

A line ``<!-- make soak -->`` directly before a block leaves it to ``make soak``, because it costs too much.

Some commands have a special meaning:

- ``headrace broker``, and ``headrace run`` without ``--for``, stand for the reader's other terminal: they keep running
  until the next such command or the end of the page. There, the reader presses Ctrl-C, and they must stop cleanly.
- ``kill -9 $(...)`` kills that ``headrace run``, by its id: other processes of the machine may have the same name.
- ``headrace query`` is repeated until it prints what the page shows, because a view follows the log a moment later.
- ``make`` cannot run inside its own tests, so only its targets are checked. ``python -m pytest`` would start another
  Spark: ``tests/flow/test_page_tests.py`` runs the tests that pages show.
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

from headrace.flow.spark.jars import QUICK_START

from .tracked import ROOT

ADDRESS = "127.0.0.1:9092"
PAGE_ADDRESS = "127.0.0.1:8180"
# Blocks of these kinds are not executed. Any other kind is an error, so that no code stays untested.
PLAIN = {"text", "toml", "json", "ini", "diff", "mermaid"}
# These blocks run in Chromium, in tests/remote/test_browser.py, tests/browser/test_sections.py.
IN_A_BROWSER = {"js"}
_COMMAND_S_MAX = 240
_READY_S_MAX = 120
_POLL_S = 0.05
ONLY_SOAK = "<!-- make soak -->"
_FILE_BLOCK = re.compile(r"(?:python|text) (>> )?([\w./-]+)")
_SERVICES = ("headrace broker", "headrace run")
_PROGRESS = re.compile(r"\w+: \d+ of \d+ MB, \d+ %")


class SnippetFailed(AssertionError):
    """The code of a page does not do what the page shows."""


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    text: str
    only_soak: bool = False


@dataclass
class Command:
    line: int
    text: str
    expected: list[str] = field(default_factory=list)


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, each with the line on which its text begins."""
    kind: str | None = None
    begin, only_soak = 0, False
    block_lines: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.startswith("```"):
            block_lines.append(line)
        elif kind is None:
            only_soak = block_lines[-1:] == [ONLY_SOAK]
            kind, begin, block_lines = line[3:].strip(), number + 1, []
        else:
            yield Block(kind, begin, "\n".join(block_lines), only_soak)
            kind, block_lines = None, []
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
    """Runs the code of one page in ``folder``, as a reader would. With ``soak``, also the blocks for ``make soak``."""

    def __init__(self, page: Path, folder: Path, *, soak: bool = False) -> None:
        self.page = page
        self._soak = soak
        self.folder = folder
        self.addresses = {name: f"127.0.0.1:{_free_port()}" for name in (ADDRESS, PAGE_ADDRESS)}
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.service: subprocess.Popen[bytes] | None = None
        """The broker or the app in the reader's other terminal."""
        self._service_line = 0
        self._output = folder / ".service-output"
        venv = Path(sys.executable).parent
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_LOG")},
            "PATH": f"{venv}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_LOG__LISTEN": self.addresses[ADDRESS],
            "HEADRACE_SERVE__LISTEN": self.addresses[PAGE_ADDRESS],
            "HEADRACE_SPARK__MASTER": "local[2]",
            "HEADRACE_SPARK__JAVA_OPTIONS": " ".join(QUICK_START),
        }

    def run_page(self) -> None:
        text = self.page.read_text(encoding="utf-8")
        has_service = any(f"$ {service}" in text for service in _SERVICES)
        try:
            for block in blocks(text):
                if block.only_soak and not self._soak:
                    continue
                if block.kind == "python":
                    self._run_python(block)
                elif file := _FILE_BLOCK.fullmatch(block.kind):
                    self._write_file(file[2], block.text, append=bool(file[1]))
                elif block.kind == "console":
                    for command in commands(block):
                        needs_broker = command.text.startswith("headrace ") and "--help" not in command.text
                        if needs_broker and self.service is None and not has_service:
                            self._start_service(
                                Command(command.line, "headrace broker --data broker-data", ["..."])
                            )
                        self._run(command)
                elif block.kind not in PLAIN | IN_A_BROWSER:
                    raise self._failure(block.line, f"a block of kind '{block.kind}' would never be run")
            self._stop_service()
        finally:
            self._kill_service()

    def _run(self, command: Command) -> None:
        text = command.text
        if text.startswith("make "):
            self._find_target(command)
        elif text.startswith("python -m pytest"):
            return
        elif text.startswith("cd "):
            self.folder /= text.removeprefix("cd ")
        elif text.startswith("kill -9 $("):
            self._kill_service()
        elif text.startswith(_SERVICES) and "--help" not in text and "--for" not in text:
            self._start_service(command)
        else:
            deadline = time.monotonic() + _READY_S_MAX
            while True:
                code, printed = self._shell(text)
                is_expected = code == 0 and matches(self._with_addresses(command.expected), printed)
                if is_expected or not text.startswith("headrace query") or time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
            if code != 0:
                raise self._failure(command.line, f"{text}\nexited with code {code}:\n{printed}")
            self._compare(command, printed)

    def _shell(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._with_address(text)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_S_MAX,
            check=False,
        )
        return done.returncode, done.stdout

    def _run_python(self, block: Block) -> None:
        # Leading blank lines keep the page's line numbers in a traceback.
        text = "\n" * (block.line - 1) + self._with_address(block.text)
        # Pages do not inherit the __future__ imports of this file.
        code = compile(text, str(self.page), "exec", dont_inherit=True)
        with contextlib.chdir(self.folder):
            exec(code, self.namespace)

    def _write_file(self, name: str, text: str, *, append: bool) -> None:
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise SnippetFailed(f"{name} is outside of the page's folder")
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            file.write(f"{text}\n")

    # The reader's other terminal

    def _start_service(self, command: Command) -> None:
        self._stop_service()
        text = self._with_address(command.text)
        if text.startswith("headrace broker") and self.addresses[ADDRESS] not in text:
            text += f" --listen {self.addresses[ADDRESS]}"
        self._service_line = command.line
        with open(self._output, "wb") as output_file:
            self.service = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=output_file,
            )
        deadline = time.monotonic() + _READY_S_MAX
        expected = self._with_addresses(command.expected)
        while not (printed := self._output.read_text(encoding="utf-8")).endswith("\n") or (
            not matches(expected, printed) and text.startswith("headrace run")
        ):
            if self.service.poll() is not None or time.monotonic() > deadline:
                raise self._failure(command.line, f"{text}\ndid not become ready:\n{printed}")
            time.sleep(_POLL_S)
        self._compare(command, printed)

    def _stop_service(self) -> None:
        """Press Ctrl-C. A broker exits with 0; an app says that it stops, and exits with 130."""
        service, self.service = self.service, None
        if service is None:
            return
        service.send_signal(signal.SIGINT)
        try:
            code = service.wait(_READY_S_MAX)
        except subprocess.TimeoutExpired:
            service.kill()
            raise
        printed = self._output.read_text(encoding="utf-8")
        if code != (130 if "Ctrl-C again stops at once" in printed else 0):
            raise self._failure(self._service_line, f"the command did not stop cleanly: {code}\n{printed}")

    def _kill_service(self) -> None:
        if self.service is not None:
            self.service.kill()
            self.service.wait()
            self.service = None

    def _find_target(self, command: Command) -> None:
        target = command.text.split()[1]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        if re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) is None:
            raise self._failure(command.line, f"the Makefile has no target {target}")

    def _compare(self, command: Command, printed: str) -> None:
        expected = self._with_addresses(command.expected)
        if not matches(expected, printed):
            expected_text = "\n".join(expected)
            raise self._failure(
                command.line, f"{command.text}\nshould print:\n{expected_text}\nbut printed:\n{printed}"
            )

    def _with_address(self, text: str) -> str:
        for name, address in self.addresses.items():
            text = text.replace(name, address)
        return text

    def _with_addresses(self, lines: list[str]) -> list[str]:
        return [self._with_address(line) for line in lines]

    def _failure(self, line: int, reason: str) -> SnippetFailed:
        return SnippetFailed(f"{self.page.name} line {line}: {reason}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
