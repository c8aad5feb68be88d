"""Assign test files to the processes of a run, and stop shared servers that are no longer used.

Test files that need the same slow server form a *lane*: ``spark`` (Spark and its log), ``kafka`` (Apache Kafka and the
Java driver), ``log/FOLDER`` (the broker of a folder of tests), ``cli`` (a broker for the command). One process runs
lane ``spark``, and one process runs lane ``kafka``, so that a run has one of each server. A free process joins them
only if more than ``_HELP_S`` seconds of the lane are left. A process without such a lane starts another lane, and stays
in it as long as the lane has files. Within a lane the file with the longest recorded time runs first.

When a process changes to another lane, it closes the session fixtures that the next test does not use: an idle broker
still costs CPU time, for each of its topics.

``tests/schedule.tsv`` has the lane and the recorded seconds of each file; ``--record-schedule`` writes it. For a file
that is not in the table, the entries of its folder are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["LANES", "Lanes", "Schedule"]

TABLE = Path("tests") / "schedule.tsv"
LANES = ("spark", "kafka", "log", "cli", "")
"""The lanes with a server, in the order in which processes start them."""
BY_FOLDER = ("log",)
"""The fixture has the name of the lane, and each folder that defines it is a lane of its own, ``log/FOLDER``."""
ONE_PROCESS = ("spark", "kafka")
_FIXTURES = {
    "spark": {"spark", "flow_world", "fault_world"},
    "kafka": {"kafka_server", "headrace_server", "driver", "clients"},
    "log": {"log"},
    "cli": {"embedded"},
}
_HELP_S = 240.0
"""A free process joins a lane that has more seconds left than this; it must then start the lane's servers again."""
_UNKNOWN_S = 5.0
_file_lane = pytest.StashKey[str]()


@dataclass(frozen=True)
class Entry:
    seconds: float
    lane: str


class Schedule:
    """The recorded seconds and lane of each test file."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, path: Path) -> Schedule:
        entries = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            file, seconds, lane = line.split("\t")
            entries[file] = Entry(float(seconds), lane)
        return cls(entries)

    def entry(self, file: str) -> Entry:
        if file in self._entries:
            return self._entries[file]
        folder = file.rpartition("/")[0]
        lanes = Counter(
            entry.lane for other, entry in self._entries.items() if other.rpartition("/")[0] == folder
        )
        return Entry(_UNKNOWN_S, lanes.most_common(1)[0][0] if lanes else "")

    def rank(self, file: str) -> tuple[tuple[int, str], float]:
        entry = self.entry(file)
        return _order(entry.lane), -entry.seconds

    def write(self, path: Path, measured: dict[str, Entry]) -> None:
        """Write the measured entries, and the earlier entries of files that were not measured but still exist."""
        merged = {**self._entries, **measured}
        lines = [
            f"{file}\t{entry.seconds:.1f}\t{entry.lane}\n"
            for file, entry in sorted(merged.items())
            if (path.parent.parent / file).exists()
        ]
        path.write_text("".join(lines), encoding="utf-8")


def _order(lane: str) -> tuple[int, str]:
    return LANES.index(lane.partition("/")[0]), lane


class Lanes:
    """Decides which file a process runs next."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._owners: dict[str, object] = {}
        self._current: dict[object, str] = {}
        """The lane of the last file of each process."""

    def choose(self, process: object, waiting: Iterable[str]) -> str | None:
        """Return the next file for the process, or None if the remaining files belong to other processes."""
        lanes: dict[str, list[str]] = {}
        for file in sorted(waiting, key=self._schedule.rank):
            lanes.setdefault(self._schedule.entry(file).lane, []).append(file)
        for lane in ONE_PROCESS:
            if lane in lanes and self._owners.setdefault(lane, process) is process:
                return lanes[lane][0]
        shared = [lane for lane in lanes if lane not in ONE_PROCESS]
        if shared:
            lane = self._current.get(process, "")
            if not lane or lane not in shared:
                lane = min(shared, key=lambda lane: self._preference(lane, lanes[lane]))
            self._current[process] = lane
            return lanes[lane][0]
        for lane in ONE_PROCESS:
            if self._seconds(lanes.get(lane, ())) > _HELP_S:
                return lanes[lane][0]
        return None

    def _preference(self, lane: str, files: Iterable[str]) -> tuple[int, bool, float]:
        """Sort key: lanes with a server first; among these, lanes without another process; then the longest lane."""
        return _order(lane)[0], lane in self._current.values(), -self._seconds(files)

    def _seconds(self, files: Iterable[str]) -> float:
        return sum(self._schedule.entry(file).seconds for file in files)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-schedule",
        action="store_true",
        help=f"write the lane and the seconds of each file to {TABLE}",
    )


def pytest_configure(config: pytest.Config) -> None:
    # With several processes only the first one receives the reports of all tests.
    if config.getoption("--record-schedule") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath / TABLE), "schedule-recorder")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    lanes = Lanes(Schedule.read(config.rootpath / TABLE))

    class LaneScheduler(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            file = lanes.choose(node, self.workqueue)
            if file is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    return LaneScheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests so that the files of a lane are adjacent, even in a run with one process."""
    lanes: dict[str, str] = {}
    for item in items:
        file, lane = _file(item), _lane(item)
        lanes[file] = min(lanes.get(file, ""), lane, key=_order)
    schedule = Schedule.read(config.rootpath / TABLE)
    order = {file: (_order(lane), schedule.rank(file)[1], file) for file, lane in lanes.items()}
    items.sort(key=lambda item: order[_file(item)])
    for item in items:
        item.stash[_file_lane] = lanes[_file(item)]
        item.user_properties.append(("lane", lanes[_file(item)]))


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::", 1)[0]


def _lane(item: pytest.Item) -> str:
    names = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    if callspec is not None and callspec.params.get("cluster") == "kafka" and "spark" not in names:
        return "kafka"
    lane = next((lane for lane, fixtures in _FIXTURES.items() if names & fixtures), "")
    return f"{lane}/{_folder(item, lane)}" if lane in BY_FOLDER else lane


def _folder(item: Any, fixture: str) -> str:
    """The folder whose conftest defines the fixture."""
    return Path(item._fixtureinfo.name2fixturedefs[fixture][-1].baseid).stem


_open: dict[pytest.FixtureDef[Any], Any] = {}
"""The session fixtures of the suite that are set up, each with its fixture request."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
    value = yield
    if fixturedef.scope == "session" and _is_of_suite(fixturedef, request.config.rootpath):
        _open[fixturedef] = request
    return value


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _open.pop(fixturedef, None)


def _is_of_suite(fixturedef: pytest.FixtureDef[Any], root: Path) -> bool:
    """Whether the fixture is defined in the repository, not by pytest or an installed plugin."""
    code = getattr(fixturedef.func, "__code__", None)
    file = Path(code.co_filename) if code is not None else Path()
    return file.is_relative_to(root) and "site-packages" not in file.parts


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    if nextitem is None or nextitem.stash[_file_lane] == item.stash[_file_lane]:
        return
    # By definition, not by name: several folders define a fixture ``cluster``.
    info = getattr(nextitem, "_fixtureinfo", None)
    needed = (
        {fixture_def for definitions in info.name2fixturedefs.values() for fixture_def in definitions}
        if info
        else set()
    )
    closed = [definition for definition in _open if definition not in needed]
    # A fixture may return the value of another fixture that its arguments do not name, as ``cluster`` returns a server.
    values = [_value(definition) for definition in closed]
    closed += [
        fixture_def
        for fixture_def in _open
        if fixture_def in needed and any(_value(fixture_def) is value for value in values)
    ]
    for definition in closed:
        if definition in _open:
            definition.finish(_open[definition])


def _value(definition: pytest.FixtureDef[Any]) -> object:
    """Return the value of a fixture that is set up; for None a new object, because None identifies no fixture."""
    value = definition.cached_result[0] if definition.cached_result else None
    return object() if value is None else value


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._measured: dict[str, Entry] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.split("::", 1)[0]
        lane = next((value for name, value in report.user_properties if name == "lane"), "")
        seconds = self._measured[file].seconds if file in self._measured else 0.0
        self._measured[file] = Entry(seconds + report.duration, str(lane))

    def pytest_sessionfinish(self) -> None:
        Schedule.read(self._path).write(self._path, self._measured)
