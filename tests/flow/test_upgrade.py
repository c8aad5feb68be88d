"""Today's code starts on a data directory of an earlier state, continues it, and proves it (docs/upgrade.md)."""

from __future__ import annotations

import json
import tarfile
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.testing import RunningApp, eventually
from tests.cli.runner import Headrace
from tests.flow.upgrade import bikes
from tests.flow.upgrade.write_data import FILE

BYTES_MAX = 300_000

Running = Callable[..., AbstractContextManager[RunningApp]]


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    with tarfile.open(FILE) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path


def as_json(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows with values as text: a query prints decimals and times as the store has them."""
    return sorted(
        ({name: _text(value) for name, value in row.items()} for row in rows),
        key=lambda row: list(row.values()),
    )


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat(timespec="microseconds")).replace("+00:00", "Z")
    return str(value)


def expect_rows(run: RunningApp, rows_by_view: dict[str, list[dict[str, Any]]]) -> None:
    for view, rows in rows_by_view.items():
        eventually(lambda view=view: as_json(run.rows(view)), as_json(rows), what=view)  # type: ignore[misc]


def test_the_sample_is_small_and_records_who_wrote_it(earlier: Path) -> None:
    assert FILE.stat().st_size < BYTES_MAX
    about = json.loads((earlier / "data" / "about.json").read_text())
    assert about["version"] == "0.1.0"
    assert len(about["commit"]) == 40


def test_an_earlier_data_directory_continues_and_every_view_is_proven(
    earlier: Path, running: Running
) -> None:
    data = earlier / "data"
    about = json.loads((data / "about.json").read_text())
    # Today's rule for late events is another one, so the flows do not continue on their own (CHANGELOG.md).
    with (
        pytest.raises(HeadraceError, match="the rules of an earlier release") as stopped,
        running(bikes.app, data=data) as run,
    ):
        expect_rows(run, about["rows"])
    assert stopped.value.code == "HR-FLOW-CHANGED"
    with running(bikes.app, data=data, rebuild_changed=True, serve=True) as run:
        run.write(bikes.rides, bikes.ride(11, "c", minutes=11), bikes.ride(12, minutes=-60))
        run.write(bikes.stations, bikes.Station("d", "Dogwood"))
        run.catch_up()
        late = [*bikes.LATE, "r12"]
        assert {row["ride_id"] for row in run.rows("rides")} == {
            *(row["ride_id"] for row in about["rows"]["rides"]),
            *late,
            "r11",
        }
        assert [record.row["ride_id"] for record in run.late("sum_per_minute")] == late
        assert [record.value for record in run.dead("name_stations")] == bikes.DEAD
        earlier_minutes = [row for row in about["rows"]["per-minute"] if row["name"] != "Cedar"]
        minutes = [row for row in run.rows("per-minute") if row["name"] != "Cedar"]
        assert as_json(minutes) == as_json(earlier_minutes)
        assert run.row("per-minute", "Cedar", bikes.NOON.replace(minute=11)) == {
            "name": "Cedar",
            "minute": bikes.NOON.replace(minute=11),
            "price": Decimal(20),
            "rides": 2,
        }
        run.verify()
        request = urllib.request.Request(
            f"{run.url}/v1/views/stations/rows/d", headers={"Authorization": f"Bearer {about['token']}"}
        )
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["row"] == {"station_id": "d", "name": "Dogwood"}


def test_an_earlier_backup_can_be_checked(earlier: Path) -> None:
    done = Headrace("").run("backup", "check", str(earlier / "backup"))
    assert done.code == 0, done.err
