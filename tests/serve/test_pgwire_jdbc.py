"""PostgreSQL's JDBC driver, by which most BI tools come: it finds everything out by itself, then reads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.serve.everything import STORES
from tests.serve.sql_house import COUNT, ORDERS
from tools.jars import jar
from tools.java import QUICK_START, compile_java, java

_SOURCE = Path(__file__).with_name("java") / "Introspection.java"


def test_a_bi_tool_on_jdbc_finds_tables_columns_and_keys_and_reads(sql_port: int, tmp_path: Path) -> None:
    driver = jar("postgresql")
    compile_java([_SOURCE], [driver], tmp_path)
    path = os.pathsep.join(map(str, (tmp_path, driver)))
    words: list[str | Path] = [
        java(),
        *QUICK_START,
        "-Duser.timezone=UTC",
        "-cp",
        path,
        "Introspection",
        str(sql_port),
    ]
    done = subprocess.run(
        [*words, "postgres_things", "thing_id", "t0008"], capture_output=True, text=True, timeout=360
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        what, _, rest = line.partition(" ")
        told.setdefault(what, []).append(rest)
    assert told["product"] == ["PostgreSQL valid true"]
    assert "public" in told["schema"]
    assert sorted(told["table"]) == sorted(
        f"{name} TABLE" for name in [ORDERS, *(f"{one}_things" for one in STORES)]
    )
    # Name, type, java.sql.Types, whether it may be null, place.
    assert told["column"][:5] == [
        "thing_id text 12 0 1",
        "number int8 -5 0 2",
        "name text 12 1 3",
        "price numeric 2 1 4",
        "weight float8 8 1 5",
    ]
    assert told["column"][6:9] == ["at timestamptz 93 1 7", "day date 91 1 8", "raw bytea -2 1 9"]
    assert told["key"] == ["thing_id 1 postgres_things_pkey"]
    assert told["index"] == ["postgres_things_pkey thing_id f"]
    assert told["privilege"] == ["SELECT"]
    assert told["types"] == ["true"]
    # As text at first, and as binary once the driver has prepared it.
    assert len(told["row"]) == 8
    (row,) = {*told["row"]}
    assert "number=8 name= price=6.000000 weight=1.1428571428571428 good=false" in row
    assert "at=2026-01-31 12:00:08.000008 day=2026-02-09 raw=00ff275c78" in row
    assert told["fetched"] == [str(COUNT)]
    assert told["refused"] == ["25006"]
