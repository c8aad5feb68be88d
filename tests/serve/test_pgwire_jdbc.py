"""PostgreSQL's JDBC driver, which most BI tools use: it queries the catalog, then reads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.serve.every_store import STORES
from tests.serve.sql_server import COUNT, ORDERS
from tools.jars import jar
from tools.java import QUICK_START, compile_java, java

_SOURCE = Path(__file__).with_name("java") / "Introspection.java"


def test_a_bi_tool_on_jdbc_finds_tables_columns_and_keys_and_reads(sql_port: int, tmp_path: Path) -> None:
    driver = jar("postgresql")
    compile_java([_SOURCE], [driver], tmp_path)
    path = os.pathsep.join(map(str, (tmp_path, driver)))
    command: list[str | Path] = [
        java(),
        *QUICK_START,
        "-Duser.timezone=UTC",
        "-cp",
        path,
        "Introspection",
        str(sql_port),
    ]
    done = subprocess.run(
        [*command, "postgres_things", "thing_id", "t0008"], capture_output=True, text=True, timeout=360
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        kind, _, rest = line.partition(" ")
        result.setdefault(kind, []).append(rest)
    assert result["product"] == ["PostgreSQL valid true"]
    assert "public" in result["schema"]
    assert sorted(result["table"]) == sorted(
        f"{name} TABLE" for name in [ORDERS, *(f"{store}_things" for store in STORES)]
    )
    # Name, type, java.sql.Types, nullable, ordinal position.
    assert result["column"][:5] == [
        "thing_id text 12 0 1",
        "number int8 -5 0 2",
        "name text 12 1 3",
        "price numeric 2 1 4",
        "weight float8 8 1 5",
    ]
    assert result["column"][6:9] == ["at timestamptz 93 1 7", "day date 91 1 8", "raw bytea -2 1 9"]
    assert result["key"] == ["thing_id 1 postgres_things_pkey"]
    assert result["index"] == ["postgres_things_pkey thing_id f"]
    assert result["privilege"] == ["SELECT"]
    assert result["types"] == ["true"]
    # As text first, as binary once the driver has prepared the statement.
    assert len(result["row"]) == 8
    (row,) = {*result["row"]}
    assert "number=8 name= price=6.000000 weight=1.1428571428571428 good=false" in row
    assert "at=2026-01-31 12:00:08.000008 day=2026-02-09 raw=00ff275c78" in row
    assert result["fetched"] == [str(COUNT)]
    assert result["refused"] == ["25006"]
