"""``headrace view`` and ``headrace query``: an app's views from the command line."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.servers.server import Server, free_port
from faults.wait import until, watched_process
from headrace.cli.app_loader import AppNotLoaded, load_app, load_checked_app
from headrace.cli.errors import UsageError
from headrace.cli.sql import SqlRunner, Watch, app_sources
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.settings import ServeSettings
from tests.cli.runner import Headrace

APP = "tests.cli.shop:app"
PRODUCTS = b"""\
a\t{"product_id":"a","name":"apple","price":1.5,"weight":"Infinity","picture":"aGk="}
b\t{"product_id":"b","name":"b\\u00e4r","price":2}
c\tnot JSON
"""


@pytest.fixture(scope="module")
def followed(embedded: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which one view is up to date."""
    data = tmp_path_factory.mktemp("view-data")
    headrace = Headrace(embedded.bootstrap)
    Cluster(embedded.bootstrap).ensure_topic("cli-products", 2)
    headrace.ok("produce", "cli-products", "-f", "%k\t%v\n", stdin=PRODUCTS)
    shown = headrace.ok("view", "follow", APP, "products", "--data", str(data), "--exit", "--json")
    assert shown.json == [
        {"view": "products", "generation": None, "batch": None, "applied": 3, "dead": 1, "lag": 0}
    ]
    assert "do not fit" in shown.err
    return data


def test_view_list_works_without_a_broker(followed: Path) -> None:
    without_broker = Headrace(f"127.0.0.1:{free_port()}")
    rows = without_broker.ok("view", "list", APP, "--data", str(followed), "--json").json
    assert [(row["view"], row["topic"], row["key"], row["state"], row["dead"]) for row in rows] == [
        ("products", "cli-products", ["product_id"], "serving", 1),
        ("sales", "cli-sales", ["product"], "not built", None),
    ]
    assert rows[0]["store"] == str(followed / "shop.db")
    assert "not built" in without_broker.ok("views", "list", APP, "--data", str(followed)).out


def test_describe_shows_columns_rows_position_and_lag(headrace: Headrace, followed: Path) -> None:
    (caught,) = headrace.ok("view", "describe", APP, "products", "--data", str(followed), "--json").json
    assert (caught["rows"], caught["behind"], caught["state"], caught["dead"]) == (2, 0, "serving", 1)
    assert caught["columns"][0] == {"column": "product_id", "kind": "text", "optional": False, "key": True}
    shown = headrace.ok("view", "describe", APP, "--data", str(followed))
    assert "COLUMN" in shown.out
    assert "not built" in shown.out
    without_broker = Headrace(f"127.0.0.1:{free_port()}")
    without = without_broker.ok("view", "describe", APP, "products", "--data", str(followed), "--json")
    assert without.json[0]["behind"] is None
    assert "cannot measure" in without.err


def test_a_view_is_read_as_a_table_or_as_json(headrace: Headrace, followed: Path) -> None:
    apple = {"product_id": "a", "name": "apple", "price": "1.500000", "weight": "Infinity", "picture": "aGk="}
    bear = {"product_id": "b", "name": "bär", "price": "2.000000", "weight": 0.0, "picture": None}
    data = ("--data", str(followed))
    assert headrace.ok("query", APP, "products", *data, "--json").json == [apple, bear]
    assert headrace.ok("query", str(followed / "shop.db"), "products", "--json").json == [apple, bear]
    shown = headrace.ok("query", APP, "products", *data, "--limit", "1")
    assert shown.lines[0].split() == ["PRODUCT-ID", "NAME", "PRICE", "WEIGHT", "PICTURE"]
    assert len(shown.lines) == 2
    assert "more rows" in shown.err
    assert "more rows" not in headrace.ok("query", APP, "products", *data, "--limit", "2").err


def test_a_statement_is_duckdbs_sql_over_the_views_of_an_app_or_a_file(
    headrace: Headrace, followed: Path
) -> None:
    statement = (
        "WITH dear AS (SELECT * FROM Products WHERE price >= 1.5::DECIMAL(2, 1))"
        " SELECT count(*) AS n, sum(price) AS price, max(name) FILTER (name > 'b') AS name, 1 AS name FROM dear"
    )
    expected = [{"n": 2, "price": "3.500000", "name": "bär", "name_2": 1}]
    data = ("--data", str(followed))
    assert headrace.ok("query", APP, statement, *data, "--json").json == expected
    assert headrace.ok("query", str(followed / "shop.db"), statement, "--json").json == expected
    assert headrace.ok("query", APP, "SELECT 1 AS x WHERE false", *data).err == "no rows\n"
    limited = headrace.ok("query", APP, "SELECT name FROM products ORDER BY ALL", *data, "--limit", "1")
    assert limited.lines == ["NAME", "apple"]
    assert "more rows" in limited.err


def test_watched_statements_show_their_newest_rows_or_their_error(followed: Path) -> None:
    sources = app_sources(load_app(APP), followed, lambda name: name)
    statements = ["SELECT name FROM products ORDER BY ALL", "SELECT nothing FROM products"]
    with contextlib.closing(Watch(lambda: SqlRunner(sources, ServeSettings()), statements)) as watch:
        watch.refresh()
        names, failed = watch.rows()
    assert (names.columns, names.rows, names.error) == (["name"], [("apple",), ("bär",)], "")
    assert (failed.rows, "nothing" in failed.error) == ([], True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM products", "only SELECT is allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "the table function read_text() is not allowed"),
        ("SELECT * FROM nowhere", "shop has no view 'nowhere'"),
        ("SELECT missing FROM products", "missing"),
        ("SELECT count(*) FROM range(100000000000) a, range(100000000000) b", "0.2 s"),
    ],
)
def test_a_statement_can_only_read_views_and_ends_at_its_timeout(
    headrace: Headrace, followed: Path, statement: str, message: str
) -> None:
    refused = headrace.run("query", APP, statement, "--data", str(followed), "--timeout", "0.2")
    assert (refused.code, refused.out) == (1, "")
    assert message in refused.err


def test_unknown_views_files_and_apps_are_errors_with_a_next_step(
    headrace: Headrace, followed: Path, tmp_path: Path
) -> None:
    data = ("--data", str(followed))
    for words, code, says in (
        (("query", APP, "sales", *data), 1, "has no view 'sales'"),
        (("query", APP, "other", *data), 1, "has no view 'other'"),
        (("query", APP, "products", "--data", str(tmp_path)), 1, "headrace view follow"),
        (("query", "./nowhere.db", "products"), 2, "file ./nowhere.db does not exist"),
        (("view", "follow", APP, "other", *data), 1, "it has products, sales"),
        (("view", "list", "no-app"), 2, "module:variable"),
        (("view", "list", "no_module:app"), 1, "no module 'no_module'"),
    ):
        result = headrace.run(*words)
        assert (result.code, result.out) == (code, ""), words
        assert says in result.err
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE products (x)")
    assert "no follower created" in headrace.run("query", str(tmp_path / "other.db"), "products").err


def test_a_requested_rebuild_is_done_by_the_follower(headrace: Headrace, followed: Path) -> None:
    data = ("--data", str(followed))
    rows = headrace.ok("view", "rebuild", APP, "products", "sales", *data, "--json").json
    assert [row["status"].split(";")[0] for row in rows] == ["will be rebuilt", "not built yet"]
    shown = headrace.ok("view", "follow", APP, "products", "--exit", *data)
    assert "requested" in shown.err
    assert headrace.ok("query", APP, "SELECT count(*) AS n FROM products", *data, "--json").json == [{"n": 2}]


def test_follow_runs_until_it_is_interrupted(headrace: Headrace, followed: Path, tmp_path: Path) -> None:
    words = ("view", "follow", APP, "products", "--data", str(tmp_path))
    with headrace.started(*words) as process:
        with watched_process(process, "headrace view follow"):
            until(lambda: (tmp_path / "shop.db").exists(), "the store")
            until(lambda: headrace.run("query", str(tmp_path / "shop.db"), "products").code == 0, "the view")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert out.decode().splitlines()[0].split() == ["VIEW", "GENERATION", "BATCH", "APPLIED", "DEAD", "LAG"]


def test_a_failed_follower_is_reported_and_fails_the_command(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "shop.db").mkdir()
    failed = headrace.run("view", "follow", APP, "products", "--data", str(tmp_path))
    assert failed.code == 1
    assert "is a directory" in failed.err


# Loading an app


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write modules to the current directory, and unload them after the test."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield lambda name, text: (tmp_path / name).write_text(text) and None
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("users_"):
            del sys.modules[name]


GOOD = """
from dataclasses import dataclass
from headrace import App

@dataclass
class Row:
    key: str

app = App("shop")
app.view("rows", app.table("rows", Row, key="key"))
"""


def test_an_app_is_imported_from_the_current_directory(write: Callable[[str, str], None]) -> None:
    write("users_good.py", GOOD)
    assert load_app("users_good:app").name == "shop"
    assert load_app("users_good").name == "shop"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("users_gone:app", None, ["no module 'users_gone'"]),
        ("users_gone.sub:app", None, ["no module 'users_gone'"]),
        ("users_a:app", "import users_b", ["users_a.py:1: ModuleNotFoundError", "users_b"]),
        ("users_c:app", "\n\nx = 1 / 0", ["users_c.py:3: ZeroDivisionError"]),
        ("users_d:app", "def f():\n    boom()\nf()", ["users_d.py:2: NameError: name 'boom'"]),
        ("users_e:app", "x = (", ["users_e.py:1: SyntaxError"]),
        ("users_f:app", "import sys\nsys.exit(3)", ["users_f.py:2: SystemExit"]),
        ("users_g:other", GOOD, ["no variable 'other'", "apps in the module: app"]),
        ("users_h:Row", GOOD, ["is a type, not an App"]),
        ("users_i:app", "x = 1", ["no variable 'app'", "has no App"]),
    ],
)
def test_the_error_for_an_app_that_does_not_load_names_the_cause(
    write: Callable[[str, str], None], name: str, text: str | None, says: list[str]
) -> None:
    if text is not None:
        write(f"{name.partition(':')[0]}.py", text)
    with pytest.raises(AppNotLoaded) as caught:
        load_app(name)
    for item in says:
        assert item in str(caught.value)


@pytest.mark.parametrize("name", ["", ":", "a b:app", "../x:app", "x:a.b", "x:1", "a..b:app"])
def test_an_invalid_app_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError):
        load_app(name)


def test_a_mistake_in_an_app_is_shown_at_its_line(write: Callable[[str, str], None]) -> None:
    write("users_wrong.py", GOOD.replace('key="key"))', "key=()))"))
    with pytest.raises(HeadraceError) as caught:
        load_checked_app("users_wrong:app")
    assert "users_wrong.py:10" in str(caught.value)
