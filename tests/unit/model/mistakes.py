"""Small apps, each with a mistake: ``# !`` and the code stand on the line that the error must name."""

from __future__ import annotations

__all__ = ["HEAD", "MISTAKES"]

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
