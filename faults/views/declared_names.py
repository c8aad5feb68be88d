"""Fault X24, names as paths, in an app and on the command line: no name of a view or a topic may be used as a path.

Canary files surround the data directory. Each case declares an app with a generated name in one field and opens
its store, or passes the name to a command. What must hold: an invalid name is refused with ``HR-APP-NAME``, or by the
broker with error 17. Every failing command prints a code. Everything outside the data directory stays the same, byte
for byte.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.log.hostile_names import hostile_name, is_topic_name
from faults.log.path_names import describe_changes, digests_of_tree, plant_canaries
from faults.outcome import Outcome
from faults.patch import patched
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.servers.fork_server import fork_server
from headrace.app import App
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.model.errors import AppMistakes
from headrace.model.graph import check
from headrace.model.store import Delta, Search, SQLite
from headrace.stores.registry import open_writer

__all__ = ["CASES", "RUNS", "UNPROTECTED", "run"]

FAULT = "X24"
UNPROTECTED = {"app-names": r"^outside the data directory"}
CASES = 500
RUNS = 20

_COMMANDS_EVERY = 20
_COMMAND_S_MAX = 60.0
_CODE = re.compile(r"\[(HR-[A-Z0-9_-]+)\]")
_INVALID_TOPIC = "HR-KAFKA-TOPIC_EXCEPTION"
_FAILED = "HR-CLI-FAILED"
_NAMED_PARTS = ("app", "topic", "view", "view")
_STORES = (SQLite, SQLite, Search, Delta)


@dataclass(frozen=True)
class Order:
    order_id: str
    amount: int


def run(seed: int, *, protected: bool = True, without: str = "app-names", cases: int = CASES) -> Outcome:
    rng = random.Random(f"{FAULT} {without} {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with run_directory(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant_canaries(world)
        data = world / "data"
        data.mkdir()
        with (
            BrokerProcess(home / "own", forked=True) as broker,
            contextlib.nullcontext() if protected else _without_name_check(),
        ):
            broker.start()
            before = dict(digests_of_tree(home / "a", excluded=data))
            attack = _Attack(rng, outcome, data, world, broker, home / "command.log")
            for number in range(cases):
                outcome.hits += 1
                if protected and number % _COMMANDS_EVERY == 0:
                    attack.command()
                else:
                    # Each store checks the name of a view again, but trusts the name of the app.
                    attack.declare(_NAMED_PARTS if protected else ("app",))
            outcome.problems += [
                f"the broker logged an unexpected exception:\n{trace}"
                for trace in broker.unexpected_exceptions()
            ]
            outcome.problems += describe_changes(before, dict(digests_of_tree(home / "a", excluded=data)))
            outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


class _Attack:
    def __init__(
        self, rng: random.Random, outcome: Outcome, data: Path, world: Path, broker: BrokerProcess, log: Path
    ) -> None:
        self._rng = rng
        self._outcome = outcome
        self._data = data
        self._world = world
        self._broker = broker
        self._log = log

    def _name(self) -> str:
        name = hostile_name(self._rng, str(self._world / "x" / "made"))
        return name if isinstance(name, str) else name.decode("latin-1")

    # Names in an app

    def declare(self, named_parts: Sequence[str]) -> None:
        name, part = self._name(), self._rng.choice(named_parts)
        store = self._rng.choice(_STORES)()
        try:
            app = App(name if part == "app" else "shop")
            topic = app.topic(name if part == "topic" else "orders", Order, key="order_id")
            view = app.view(name if part == "view" else "by-order", topic, store=store)
            check(app)
        except HeadraceError as error:
            self._judge_refusal(part, name, error)
            return
        except Exception as error:
            self._report_problem(f"{part} {name!r:.60}: {type(error).__name__}: {error}")
            return
        if not is_topic_name(name):
            self._report_problem(f"{part} {name!r:.60} was accepted")
        self._open(app, view, part, name)

    def _judge_refusal(self, part: str, name: str, error: HeadraceError) -> None:
        """Check that the refusal names the mistake. All mistakes of an app are reported at once."""
        mistakes = error.mistakes if isinstance(error, AppMistakes) else (error,)
        codes = [mistake.code for mistake in mistakes]
        if not is_topic_name(name) and "HR-APP-NAME" not in codes:
            self._report_problem(f"{part} {name!r:.60} was refused with {codes}")

    def _open(self, app: App, view: View, part: str, name: str) -> None:
        """Open the store. It may fail, because a name can be too long for a file. The run compares the file tree at its
        end.
        """
        try:
            open_writer(view, app.name, self._data).close()
        except (HeadraceError, OSError) as error:
            if is_topic_name(name) and len(name) < 200:
                self._report_problem(f"the store of {part} {name!r:.60} was not opened: {error}")
        except ValueError as error:
            if is_topic_name(name):
                self._report_problem(f"the store of {part} {name!r:.60}: {error}")

    # Names on the command line

    def command(self) -> None:
        name = self._name()
        # An argument cannot contain a NUL byte. After ``--`` it may begin with a dash.
        name = name.replace("\0", "0")
        bootstrap = ["-b", self._broker.bootstrap]
        words = self._rng.choice(
            [
                ["topic", "create", *bootstrap, "--", name],
                ["topic", "describe", *bootstrap, "--", name],
                ["group", "describe", *bootstrap, "--", name],
                ["token", "create", "--scope", "admin", "--data", str(self._data), "--", name],
                ["view", "list", "--data", str(self._data), "--", name],
            ]
        )
        self._log.write_text("")
        process = fork_server().fork(["--chdir", str(self._world / "here"), "--", *words], self._log)
        code = process.wait(_COMMAND_S_MAX)
        output = self._log.read_text(errors="replace")
        what = f"headrace {' '.join(words[:2])} {name!r:.60}"
        if "Traceback" in output or _FAILED in _CODE.findall(output):
            self._report_problem(f"{what} raised an unexpected exception: {output[-300:]}")
        elif words[:2] == ["topic", "create"] and not is_topic_name(name):
            if code == 0:
                self._report_problem(f"{what} was accepted")
            elif _INVALID_TOPIC not in _CODE.findall(output) and name:
                self._report_problem(
                    f"{what} was refused with {_CODE.findall(output)} instead of {_INVALID_TOPIC}"
                )
        elif code != 0 and not _CODE.findall(output):
            self._report_problem(f"{what} exited with {code} and printed no error code: {output[-200:]}")

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)


@contextlib.contextmanager
def _without_name_check() -> Iterator[None]:
    """Accept any names of an app and its parts, in this process, while the block runs."""
    from headrace.model import names

    with patched(names, "name_fault", lambda name: None):
        yield
