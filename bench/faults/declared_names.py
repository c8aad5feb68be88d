"""X24, names as paths, in an app and on the command line: whatever a view or a topic is called, no path is made of it.

The data directory lies among canaries. Each case declares an app with a generated name in one place and opens the
store that it asks for, or gives the name to a command. What must hold: a name that cannot be one is refused with
``HR-APP-NAME``, or by the broker with error 17; every command that fails says a code; the tree outside the data
directory is the same to the last byte.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.faults.forking import fork_server
from bench.faults.hostile import hostile_name, is_topic_name
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.unprotected_names import believed_app_names
from bench.faults.workplace import workplace
from bench.faults.x24_names import changes, plant, tree
from headrace.app import App
from headrace.errors import HeadraceError
from headrace.model.errors import AppMistakes
from headrace.model.graph import check
from headrace.model.store import Delta, Search, SQLite
from headrace.model.view import View
from headrace.views.opening import open_store

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
_SPOTS = ("app", "topic", "view", "view")
_STORES = (SQLite, SQLite, Search, Delta)


@dataclass(frozen=True)
class Order:
    order_id: str
    amount: int


def run(seed: int, *, protected: bool = True, without: str = "app-names", cases: int = CASES) -> Outcome:
    rng = random.Random(f"{FAULT} {without} {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with workplace(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant(world)
        data = world / "data"
        data.mkdir()
        with (
            BrokerProcess(home / "own", forked=True) as broker,
            contextlib.nullcontext() if protected else believed_app_names(),
        ):
            broker.start()
            before = dict(tree(home / "a", besides=data))
            attack = _Attack(rng, outcome, data, world, broker, home / "command.log")
            for number in range(cases):
                outcome.hits += 1
                if protected and number % _COMMANDS_EVERY == 0:
                    attack.command()
                else:
                    # Stores look at the name of a view once more: only that of the app is believed by all.
                    attack.declare(_SPOTS if protected else ("app",))
            outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
            outcome.problems += changes(before, dict(tree(home / "a", besides=data)))
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

    # Declared

    def declare(self, spots: Sequence[str]) -> None:
        name, spot = self._name(), self._rng.choice(spots)
        store = self._rng.choice(_STORES)()
        try:
            app = App(name if spot == "app" else "shop")
            topic = app.topic(name if spot == "topic" else "orders", Order, key="order_id")
            view = app.view(name if spot == "view" else "by-order", topic, store=store)
            check(app)
        except HeadraceError as error:
            self._judge_refusal(spot, name, error)
            return
        except Exception as error:
            self._object(f"{spot} {name!r:.60}: {type(error).__name__}: {error}")
            return
        if not is_topic_name(name):
            self._object(f"{spot} {name!r:.60} was taken")
        self._open(app, view, spot, name)

    def _judge_refusal(self, spot: str, name: str, error: HeadraceError) -> None:
        """All mistakes of an app are told at once."""
        told = error.mistakes if isinstance(error, AppMistakes) else (error,)
        codes = [one.code for one in told]
        if not is_topic_name(name) and "HR-APP-NAME" not in codes:
            self._object(f"{spot} {name!r:.60} was refused with {codes}")

    def _open(self, app: App, view: View, spot: str, name: str) -> None:
        """It may fail: a name can be too long for a file. What it leaves is looked at in the end."""
        try:
            open_store(view, app.name, self._data).close()
        except (HeadraceError, OSError) as error:
            if is_topic_name(name) and len(name) < 200:
                self._object(f"the store of {spot} {name!r:.60} was not opened: {error}")
        except ValueError as error:
            if is_topic_name(name):
                self._object(f"the store of {spot} {name!r:.60}: {error}")

    # On the command line

    def command(self) -> None:
        name = self._name()
        # The kernel hands over no words with a zero byte, and words that begin with a line are options.
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
        forked = fork_server().fork(["--chdir", str(self._world / "here"), "--", *words], self._log)
        code = forked.wait(_COMMAND_S_MAX)
        said = self._log.read_text(errors="replace")
        what = f"headrace {' '.join(words[:2])} {name!r:.60}"
        if "Traceback" in said or _FAILED in _CODE.findall(said):
            self._object(f"{what} did not foresee it: {said[-300:]}")
        elif words[:2] == ["topic", "create"] and not is_topic_name(name):
            if code == 0:
                self._object(f"{what} was taken")
            elif _INVALID_TOPIC not in _CODE.findall(said) and name:
                self._object(f"{what} was refused with {_CODE.findall(said)}, not with {_INVALID_TOPIC}")
        elif code != 0 and not _CODE.findall(said):
            self._object(f"{what} ended with {code} and no code: {said[-200:]}")

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)
