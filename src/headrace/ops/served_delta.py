"""What a Delta table serves of a view.

The table is read as it is documented: the path has the view's name, and ``commitInfo`` of the newest commit that a
follower made tells the position, under ``headrace``. The rows are read of one version, and so is the position.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.ops.errors import NotServed, StoreUnreadable
from headrace.ops.plain_rows import Value, column_type
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served, served_of

__all__ = ["read_delta"]

_TRIES = 20
_GONE = re.compile(r"\(os error 2\)|file not found", re.IGNORECASE)
"""The table's files and those of its log are missed in different words."""


def read_delta(folder: Path, path: Path, view: str) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    for number in range(_TRIES - 1):
        place = folder / f"try-{number}"
        place.mkdir()
        try:
            return _read(place, path, view)
        except StoreUnreadable as error:
            # A version that is read for long may have lost its files meanwhile; there are newer ones then.
            if not _is_gone(error.__cause__):
                raise
            shutil.rmtree(place)
    return _read(folder, path, view)


def _is_gone(error: BaseException | None) -> bool:
    return isinstance(error, FileNotFoundError) or _GONE.search(str(error)) is not None


def _read(folder: Path, path: Path, view: str) -> tuple[Served, Scratch]:
    home = path / view
    with _told(home):
        try:
            table = DeltaTable(str(home))
        except TableNotFoundError as error:
            raise NotServed(
                f"view {view} does not serve in {home} yet", hint="it is being built, or nothing follows it"
            ) from error
        said = _said(home, table.version())
        served = served_of(str(path), view, said["position"], said["shape"])
        names = [one.name for one in table.schema().fields]
        if names != said["columns"]:
            raise StoreUnreadable(
                f"{home} is not as its follower made it",
                detail=f"it has the columns {', '.join(names)}",
                hint="headrace view rebuild makes it anew; rather than changing it, make a table of your own from it",
            )
    connection = Scratch.open(folder)
    try:
        scratch = Scratch(connection, [(one.name, column_type(one)) for one in served.fields], served.key)
        counted = [0]
        with _told(home):
            scratch.put("found", _rows(table, names, counted))
        if scratch.count("found") != counted[0]:
            raise StoreUnreadable(
                f"{home} has a key twice: {counted[0]} rows, {scratch.count('found')} keys",
                hint="headrace view rebuild makes it anew",
            )
    except BaseException:
        connection.close()
        raise
    return served, scratch


def _said(home: Path, version: int) -> dict[str, Any]:
    gone: FileNotFoundError | None = None
    for one in range(version, -1, -1):
        try:
            lines = (home / "_delta_log" / f"{one:020}.json").read_bytes().splitlines()
        except FileNotFoundError as error:
            gone = error
            break
        for line in filter(None, lines):
            said = msgspec.json.decode(line).get("commitInfo", {}).get("headrace")
            if said is not None:
                found: dict[str, Any] = msgspec.json.decode(said)
                return found
    raise StoreUnreadable(
        f"no commit of {home} tells how far it has come",
        hint="is it a table that a follower made? headrace view rebuild makes it anew",
    ) from gone


def _rows(table: DeltaTable, names: list[str], counted: list[int]) -> Iterator[tuple[Value, ...]]:
    for batch in table.to_pyarrow_dataset().to_batches():
        counted[0] += batch.num_rows
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            yield tuple(_plain(one) for one in row)


def _plain(value: Any) -> Any:
    """As the comparison has it, by the one text that the log has for each."""
    match value:
        case bool():
            return int(value)
        case float():
            return value if value == value else "NaN"
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").zfill(27)
        case date():
            return value.isoformat()
    return value


@contextlib.contextmanager
def _told(home: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, DeltaError, msgspec.MsgspecError) as error:
        raise StoreUnreadable(
            f"{home} cannot be read: {error}",
            hint="if it is damaged, move it away: the view is built again from the log",
        ) from error
