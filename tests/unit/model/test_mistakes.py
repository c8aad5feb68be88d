"""Each mistake is a small app with ``# !`` and the code on the line that the error must name. All are found at once."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import AppError, AppMistakes
from headrace.model.graph import check

HEAD = """
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from headrace import App
from headrace.stores import SQLite

@dataclass
class Place:
    city: str

@dataclass
class Click:
    user: str
    at: datetime
    price: Decimal
    weight: float
    seal: bytes
    tags: list[str]
    names: dict[str, str]
    place: Place
    seen: datetime | None
    count: int = 1

app = App("shop")
clicks = app.topic("clicks", Click, key="user", time="at", late=timedelta(seconds=30))
users = app.table("users", Click, key="user")
"""

FAST = "app.flow(reads=[clicks], writes=app.topic('fast', key='user'), name='fast', latency='realtime')"

MISTAKES = {
    "a table in real time": (
        "@app.flow(reads=[clicks, users], writes=app.topic('out', key='user'), latency='realtime') # ! REALTIME\n"
        "def flow(clicks, users): ...",
        "it reads the table users",
    ),
    "two streams in real time": (
        "more = app.topic('more', Click)\n"
        "@app.flow(reads=[clicks, more], writes=app.topic('out', key='user'), latency='realtime') # ! REALTIME\n"
        "def flow(clicks, more): ...",
        "it reads 2 streams",
    ),
    "a table that is written in real time": (
        "@app.flow(reads=[clicks], writes=app.table('out', key='user'), latency='realtime') # ! REALTIME\n"
        "def flow(clicks): ...",
        "it writes the table 'out'",
    ),
    "a flow that reads the output of a real-time flow": (
        f"@{FAST}\ndef fast(clicks): ...\n"
        "@app.flow(reads=[fast.writes], writes=app.topic('out', key='user')) # ! REALTIME\ndef flow(rows): ...",
        "which flow 'fast' writes in real time",
    ),
    "a view with another key than its real-time topic": (
        f"@{FAST}\ndef fast(clicks): ...\napp.view('v', fast.writes, key='count') # ! REALTIME",
        "view 'v' has the key count",
    ),
    "an app's name that is a path": ("app = App('../shop') # ! NAME", "characters other than"),
    "no name": ("app.topic('', Click) # ! NAME", "cannot be empty"),
    "a name that is no text": ("app.topic(7, Click) # ! NAME", "a name must be text, and 7 is not"),
    "a path": ("app.topic('a/b', Click) # ! NAME", "'a/b' has characters other than"),
    "a NUL": ("app.view('a\\0b', clicks) # ! NAME", "characters other than"),
    "a dot": ("app.topic('.', Click) # ! NAME", "a directory in a file system"),
    "two dots": ("app.view('..', clicks) # ! NAME", "a directory in a file system"),
    "250 characters": ("app.topic('a' * 250, Click) # ! NAME", "has 250 characters"),
    "Kafka's own": ("app.topic('__consumer_offsets', Click) # ! NAME", "is reserved for Kafka's own state"),
    "SQLite's own": ("app.view('SQLite_master', clicks) # ! NAME", "SQLite's own tables"),
    "our own table": ("app.view('_headrace_views', clicks) # ! NAME", "Headrace's own tables"),
    "a lambda": (
        "out = app.topic('out', key='user')\napp.flow(reads=[clicks], writes=out)(lambda clicks: clicks) # ! NAME",
        "'<lambda>' has characters",
    ),
    "no room for the side topics of a flow": (
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user'), name='f' * 231) # ! NAME\n"
        "def flow(clicks): ...",
        "has 251 characters",
    ),
    "no room for the generations of a topic": (
        "out = app.topic('t' * 244, key='user') # ! NAME\n@app.flow(reads=[clicks], writes=out)\ndef flow(clicks): ...",
        "has 250 characters",
    ),
    "a topic twice": ("app.topic('clicks', Click) # ! TWIN-NAMES", "is declared twice, first at"),
    "a topic and its twin by case": (
        "app.topic('Clicks', Click) # ! TWIN-NAMES",
        "topic 'Clicks' and topic 'clicks' at",
    ),
    "a topic and its twin by dot": (
        "app.topic('a.b', Click)\napp.topic('a_b', Click) # ! TWIN-NAMES",
        "differ only by case, dot or underscore",
    ),
    "a view twice": (
        "app.view('v', clicks)\napp.view('v', users) # ! TWIN-NAMES",
        "view 'v' is declared twice",
    ),
    "a view and its twin": (
        "app.view('v', clicks)\napp.view('V', users) # ! TWIN-NAMES",
        "view 'V' and view 'v'",
    ),
    "a flow twice": (
        "@app.flow(reads=[clicks], writes=app.topic('a', key='user'))\ndef flow(clicks): ...\n"
        "@app.flow(reads=[clicks], writes=app.topic('b', key='user')) # ! TWIN-NAMES\ndef flow(clicks): ...",
        "flow 'flow' is declared twice",
    ),
    "a topic where a flow has its progress": (
        "app.topic('shop.flow.progress', Click)\n"
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user')) # ! NAME-TAKEN\ndef flow(clicks): ...",
        "topic 'shop.flow.progress' of flow 'flow' collides with topic 'shop.flow.progress', declared at",
    ),
    "a topic where a flow has its late rows, nearly": (
        "app.topic('Shop_Flow_late', Click)\n"
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user')) # ! NAME-TAKEN\ndef flow(clicks): ...",
        "topic 'shop.flow.late' of flow 'flow' collides with topic 'Shop_Flow_late'",
    ),
    "a topic where a view has its dead letters": (
        "app.topic('shop.v.dead', Click)\napp.view('v', clicks) # ! NAME-TAKEN",
        "topic 'shop.v.dead' of view 'v' collides with topic 'shop.v.dead'",
    ),
    "a view and a flow with the same dead-letter topic": (
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user'))\ndef both(clicks): ...\n"
        "app.view('both', clicks) # ! NAME-TAKEN",
        "topic 'shop.both.dead' of view 'both' collides with topic 'shop.both.dead' of flow 'both'",
    ),
    "a topic where a rebuild will write": (
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user'))\ndef flow(clicks): ...\n"
        "app.topic('out.g2', Click) # ! NAME-TAKEN",
        "topic 'out.g2' collides with a rebuild of topic 'out' by flow 'flow'",
    ),
    "a topic of an app with an invalid name": (
        "app.topic('rides', Click, of='a b') # ! OF",
        "'a b' has characters other than",
    ),
    "a topic of another app that is this app": (
        "app.topic('rides', Click, of='shop') # ! OF",
        "topic 'rides' cannot be a topic of another app: 'shop' is this app",
    ),
    "a topic of another app that a flow writes": (
        "rides = app.topic('rides', key='user', of='bikes') # ! OF\n"
        "@app.flow(reads=[clicks], writes=rides)\ndef flow(clicks): ...",
        "flow 'flow' of this app writes it",
    ),
    "a topic of another app with partitions": (
        "app.table('rides', Click, key='user', partitions=2, of='bikes') # ! OF",
        "partitions is set, but the other app creates the topic",
    ),
    "a topic of another app is read": (
        "theirs = App('other').topic('clicks', Click)\n"
        "@app.flow(reads=[theirs], writes=app.topic('out', key='user')) # ! UNKNOWN-TOPIC\ndef flow(clicks): ...",
        "flow 'flow' reads topic 'clicks', which is not declared in app 'shop' but at",
    ),
    "a topic of another app is written": (
        "@app.flow(reads=[clicks], writes=App('other').topic('out', key='user')) # ! UNKNOWN-TOPIC\n"
        "def flow(clicks): ...",
        "flow 'flow' writes topic 'out', which is not declared in app 'shop'",
    ),
    "a topic of another app is followed": (
        "app.view('v', App('other').topic('a', Click, key='user')) # ! UNKNOWN-TOPIC",
        "view 'v' follows topic 'a', which is not declared in app 'shop'",
    ),
    "a circle": (
        "a, b, c = (app.topic(name, key='user') for name in 'abc')\n"
        "@app.flow(reads=[clicks, c], writes=a) # ! CYCLE\ndef first(clicks, c): ...\n"
        "@app.flow(reads=[a], writes=b)\ndef second(a): ...\n"
        "@app.flow(reads=[b], writes=c)\ndef third(b): ...",
        "flow 'first' reads a topic that is derived from its own output: c → first → a → second → b → third → c",
    ),
    "two circles": (
        "a, b, c, d = (app.topic(name, key='user') for name in 'abcd')\n"
        "@app.flow(reads=[b], writes=a) # ! CYCLE\ndef one(b): ...\n"
        "@app.flow(reads=[a], writes=b)\ndef two(a): ...\n"
        "@app.flow(reads=[d], writes=c) # ! CYCLE\ndef three(d): ...\n"
        "@app.flow(reads=[c], writes=d)\ndef four(c): ...",
        "d → three → c → four → d",
    ),
    "its own output": (
        "out = app.topic('out', key='user')\n"
        "@app.flow(reads=[clicks, out], writes=out) # ! OWN-OUTPUT\ndef flow(clicks, out): ...",
        "flow 'flow' reads topic 'out', which it writes itself",
    ),
    "a topic that is read twice": (
        "out = app.topic('out', key='user')\n"
        "@app.flow(reads=[clicks, clicks], writes=out) # ! READ-TWICE\ndef flow(one, other): ...",
        "flow 'flow' reads topic 'clicks' more than once",
    ),
    "two writers": (
        "out = app.topic('out', key='user')\n"
        "@app.flow(reads=[clicks], writes=out)\ndef one(clicks): ...\n"
        "@app.flow(reads=[clicks], writes=out) # ! TWO-WRITERS\ndef two(clicks): ...",
        "flow 'two' writes topic 'out', and so does flow 'one' at",
    ),
    "no stream": (
        "@app.flow(reads=[users], writes=app.topic('out', key='user')) # ! NO-STREAM\ndef flow(users): ...",
        "flow 'flow' reads only tables: users",
    ),
    "no input": (
        "@app.flow(reads=[], writes=app.topic('out', key='user')) # ! NO-STREAM\ndef flow(): ...",
        "flow 'flow' reads nothing",
    ),
    "a parameter too few": (
        "@app.flow(reads=[clicks, users], writes=app.topic('out', key='user')) # ! PARAMETERS\ndef flow(clicks): ...",
        "flow 'flow' reads 2 topics (clicks, users), but the parameters of its function are (clicks)",
    ),
    "a parameter too many": (
        "@app.flow(reads=[clicks], writes=app.topic('out', key='user')) # ! PARAMETERS\ndef flow(clicks, *, by): ...",
        "the parameters of its function are (clicks, *, by)",
    ),
    "an output without a key": (
        "out = app.topic('out') # ! NO-KEY\n@app.flow(reads=[clicks], writes=out)\ndef flow(clicks): ...",
        "topic 'out' has no key, and flow 'flow' writes it",
    ),
    "a table without a key": ("app.table('t', Click) # ! NO-KEY", "topic 't' has no key, and it is a table"),
    "a view without a key": (
        "app.view('v', app.topic('t', Click)) # ! NO-KEY",
        "view 'v' has no key, and topic 't' has no key either",
    ),
    "no schema": (
        "app.topic('t', key='user') # ! NO-SCHEMA",
        "topic 't' has no schema, and no flow writes it",
    ),
    "a table without a schema": ("app.table('t', key='user') # ! NO-SCHEMA", "app.table('t', ...)"),
    "a key field that does not exist": ("app.topic('t', Click, key='usr') # ! KEY", "did you mean 'user'?"),
    "a key far from anything": ("app.topic('t', Click, key='zzz') # ! KEY", "it has: user, at, price"),
    "a list as a key": ("app.topic('t', Click, key='tags') # ! KEY", "is a list, which cannot be a key"),
    "a map as a key": ("app.topic('t', Click, key='names') # ! KEY", "is an object, which cannot be a key"),
    "a record as a key": (
        "app.topic('t', Click, key='place') # ! KEY",
        "is an object, which cannot be a key",
    ),
    "a float as a key": ("app.topic('t', Click, key='weight') # ! KEY", "which cannot be a key"),
    "bytes as a key": (
        "app.topic('t', Click, key='seal') # ! KEY",
        "is bytes in base64, which cannot be a key",
    ),
    "a key that may be None": (
        "app.topic('t', Click, key='seen') # ! KEY",
        "its key field 'seen' is optional",
    ),
    "a key with a default": (
        "app.topic('t', Click, key='count') # ! KEY",
        "its key field 'count' is optional",
    ),
    "a key field twice": (
        "app.topic('t', Click, key=['user', 'user']) # ! KEY",
        "has the field 'user' twice",
    ),
    "a view's key field that does not exist": (
        "app.view('v', clicks, key='usr') # ! KEY",
        "view 'v': its key field 'usr'",
    ),
    "a view's key that cannot be one": ("app.view('v', clicks, key='tags') # ! KEY", "is a list"),
    "a time field that does not exist": ("app.topic('t', Click, time='att') # ! TIME", "did you mean 'at'?"),
    "a time field of another type": (
        "app.topic('t', Click, time='user') # ! TIME",
        "time field 'user' is text, not a time",
    ),
    "a time that may be None": (
        "app.topic('t', Click, time='seen') # ! TIME",
        "time field 'seen' is optional",
    ),
    "late without a time": (
        "app.topic('t', Click, late=timedelta(1)) # ! LATE",
        "the topic has no event time",
    ),
    "late below zero": ("app.topic('t', Click, time='at', late=-timedelta(1)) # ! LATE", "late cannot be"),
    "late without a unit": ("app.topic('t', Click, time='at', late=30) # ! LATE", "late cannot be 30"),
    "no partitions": ("app.topic('t', Click, partitions=0) # ! PARTITIONS", "cannot have 0 partitions"),
    "1.5 partitions": ("app.table('t', Click, key='user', partitions=1.5) # ! PARTITIONS", "cannot have 1.5"),
    "a store with a NUL": (
        "app.view('v', clicks, store=SQLite('a\\0b')) # ! STORE-PATH",
        "contains a NUL character",
    ),
    "a store outside": ("app.view('v', clicks, store=SQLite('../x.db')) # ! STORE-PATH", "has the part '..'"),
    "a store with a hole": (
        "app.view('v', clicks, store=SQLite('a//b.db')) # ! STORE-PATH",
        "has the part ''",
    ),
    "a store that is a folder": (
        "app.view('v', clicks, store=SQLite('a/')) # ! STORE-PATH",
        "has the part ''",
    ),
    "a store here": ("app.view('v', clicks, store=SQLite('./a')) # ! STORE-PATH", "has the part '.'"),
    "a store in memory": (
        "app.view('v', clicks, store=SQLite(':memory:')) # ! STORE-PATH",
        "does not treat as a file name",
    ),
    "a store by address": (
        "app.view('v', clicks, store=SQLite('file:a')) # ! STORE-PATH",
        "does not treat as",
    ),
    "a store with a long name": (
        "app.view('v', clicks, store=SQLite('a' * 256)) # ! STORE-PATH",
        "255 bytes",
    ),
    "no room for the schemas of an app": (
        "app = App('a' * 233) # ! NAME",
        "250 characters with 'headrace.schemas.'",
    ),
    "a topic where alerts go": (
        "app.topic('shop_alerts', Click) # ! NAME-TAKEN",
        "topic 'shop_alerts' collides with topic 'shop.alerts' of app 'shop'",
    ),
    "an alert's name that is a path": ("app.alert('a/b', 'lag > 1') # ! NAME", "an alert's name: 'a/b'"),
    "an alert twice": (
        "app.alert('a', 'lag > 1')\napp.alert('a', 'lag > 2') # ! TWIN-NAMES",
        "alert 'a' is declared twice",
    ),
    "an invalid rule": ("app.alert('a', 'lagg > 1') # ! ALERT", "did you mean lag?"),
    "a rule that is no text": ("app.alert('a', 5) # ! ALERT", "a rule must be text, and 5 is not"),
    "an alert on an unknown flow": (
        "app.alert('a', 'lag > 1 on flow price') # ! ALERT",
        "app 'shop' has no flow 'price'",
    ),
    "an alert on a view with another name": (
        "app.view('clicks', clicks)\napp.alert('a', 'lag > 1', on='view click') # ! ALERT",
        "did you mean 'clicks'?",
    ),
    "an alert on an unknown object": (
        "app.alert('a', 'lag > 1', on='everything') # ! ALERT",
        "'everything' is not a subject",
    ),
    "an alert with two subjects": (
        "app.alert('a', 'lag > 1 on flows', on='views') # ! ALERT",
        "on= names one too",
    ),
}


def load(folder: Path, text: str) -> Any:
    """Imports the text as a user's module."""
    path = folder / "shop.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def marked(folder: Path, text: str) -> list[tuple[str, str]]:
    """Line and code of each mistake that the text marks."""
    lines = enumerate(text.splitlines(), start=1)
    found = [(number, re.search(r"# ! (\S+)", line)) for number, line in lines]
    return [(f"{folder / 'shop.py'}:{number}", f"HR-APP-{mark[1]}") for number, mark in found if mark]


def mistakes(module: Any) -> tuple[AppError, ...]:
    with pytest.raises(AppMistakes) as caught:
        check(module.app)
    return caught.value.mistakes


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_hint(what: str, tmp_path: Path) -> None:
    body, expected = MISTAKES[what]
    text = f"{HEAD}{body}\n"
    found = mistakes(load(tmp_path, text))
    assert [(str(mistake.location), mistake.code) for mistake in found] == marked(tmp_path, text)
    assert any(expected in str(mistake) for mistake in found)
    assert all(mistake.hint for mistake in found)


def test_all_mistakes_of_an_app_are_reported_together_in_the_order_of_its_lines(tmp_path: Path) -> None:
    apart = [body for body, _ in MISTAKES.values() if "app = App" not in body and body.count("\n") == 0]
    # Examples about names are left out: their names would collide with those of other examples.
    text = HEAD + "\n".join(body for body in apart if re.search(r"# ! (KEY|TIME|LATE|PARTITIONS)", body))
    text = re.sub(r"'([tv])'", lambda match: f"'{match[1]}{match.start()}'", text)
    module = load(tmp_path, text)
    found = mistakes(module)
    assert [(str(mistake.location), mistake.code) for mistake in found] == marked(tmp_path, text)
    assert len(found) > 15
    with pytest.raises(AppMistakes) as caught:
        check(module.app)
    message = str(caught.value)
    assert all(str(mistake) in message for mistake in found)
    assert f"the app has {len(found)} mistakes; nothing was started [HR-APP-MISTAKES]" in message


def test_an_app_without_mistakes_passes(tmp_path: Path) -> None:
    check(load(tmp_path, HEAD).app)
    good = """
sales = app.topic("sales", key=["user", "minute"], time="at")
@app.flow(reads=[clicks, users], writes=sales)
def sell(clicks, users, scale=1): ...
@app.flow(reads=[sales, clicks], writes=app.table("top", key="user"))
def rank(*frames): ...
@app.flow(reads=[clicks], writes=app.topic("fast", key="user"), latency="realtime")
def fast(clicks): ...
app.view("fastest", fast.writes)
app.topic("anything", Click)
app.topic("sales.gold", Click)
app.view("sales", sales)
app.view("clicks", clicks, key=["user", "at"], store=SQLite("sub/clicks.db"))
top = app.view("users", users, store=SQLite("/var/lib/users.db"))
app.alert("backlog", "lag > 10_000 for 30s", on=sell)
app.alert("stale", "age > 1h", on=top)
app.alert("billing", "time_to_loss < 1h", on="group billing")
app.alert("dead", "dead > 0")
"""
    check(load(tmp_path, HEAD + good).app)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "@app.flow(reads=clicks, writes=users) # !\ndef flow(clicks): ...",
            "reads must be a list of topics",
        ),
        ("@app.flow(reads=['clicks'], writes=users) # !\ndef flow(clicks): ...", "reads must be a topic"),
        ("@app.flow(reads=[clicks], writes='out') # !\ndef flow(clicks): ...", "writes must be a topic"),
        ("app.flow(reads=[clicks], writes=users)(print) # !", "the decorated object must be a function"),
        (
            "app.flow(reads=[clicks], writes=users, latency='fast') # !",
            "latency must be 'batch' or 'realtime', not 'fast'",
        ),
        ("app.view('v', 'clicks') # !", "a view's topic must be a topic"),
        ("app.view('v', clicks, store='v.db') # !", "store must be a store of headrace.stores"),
        ("app.topic('t', Click, key=7) # !", "key must be a field's name, or a list of names, not 7"),
        ("app.topic('t', Click, key=[7]) # !", "key must be a field's name"),
        ("app.topic('t', str) # !", "a schema must be a dataclass"),
        ("app.alert('a', 'lag > 1', on=clicks) # !", "on must be a flow, a view, or a string"),
        (
            "@app.flow(reads=[clicks], writes=users)\ndef flow(clicks): ...\napp.view('v', flow) # !",
            "use flow.writes",
        ),
    ],
)
def test_a_declaration_refuses_an_argument_of_the_wrong_type(body: str, said: str, tmp_path: Path) -> None:
    text = f"{HEAD}{body}\n"
    with pytest.raises(AppError) as caught:
        load(tmp_path, text)
    (line,) = [number for number, line in enumerate(text.splitlines(), start=1) if "# !" in line]
    assert str(caught.value.location) == f"{tmp_path / 'shop.py'}:{line}"
    assert said in str(caught.value)


def test_the_docs_list_every_error_code() -> None:
    root = Path(__file__).parents[3]
    sources = [root / "src/headrace/app.py", *(root / "src/headrace/model").glob("*.py")]
    codes = {
        code
        for path in sources
        for code in re.findall(r'"(HR-APP-[A-Z-]+)"', path.read_text(encoding="utf-8"))
    }
    documented = set(
        re.findall(
            r"^\| `(HR-APP-[A-Z-]+)`", (root / "docs/apps.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    # The page does not list the generic code of a mistake, nor the code of the error that contains all mistakes.
    assert codes - {"HR-APP-INVALID", "HR-APP-MISTAKES"} == documented
