"""A server with views that a token may read and views that it may not, in the same stores. Nothing writes to them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.serve.hostile_clients import HttpClient
from faults.serve.injection_app import GRANTED, HIDDEN, app
from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.http.tokens import TokenBook, tokens_path

__all__ = ["ROWS_MAX", "InjectionScene", "injection_scene", "row_values"]

ROWS_MAX = 500
_APP = "faults.serve.injection_app:app"
_NOTES = 12
_ACCOUNTS = 1_009
"""A count that differs from every other number in a response."""
_SETTINGS: dict[str, int | str] = {
    "pg_listen": "'127.0.0.1:0'",
    "sql_ms": 1_000,
    "sql_rows_max": ROWS_MAX,
    "sql_memory_mb": 64,
    "sql_processes": 1,
}
_VOLATILE = re.compile(r"requests\.log|serve\.log|shop\.db-(wal|shm)|tokens\.json\.lock")
_WAIT_S = 120.0


class InjectionScene:
    def __init__(self, home: Path, server: ServeProcess, cluster: Cluster, rng: random.Random) -> None:
        self.home = home
        self.server = server
        self.canary = home.parent / "canary.txt"
        self.store = home / "shop.db"
        random_ids = [f"{rng.getrandbits(48):012x}" for _ in range(3)]
        self.secrets = {
            f"pin-{random_ids[0]}": "rows of a view",
            f"holder-{random_ids[1]}": "rows of a view",
            f"canary-{random_ids[2]}": "a file",
            **dict.fromkeys(HIDDEN, "the name of a view"),
            "accounts-topic": "the name of a topic",
        }
        self.count = _ACCOUNTS
        self.notes = [
            {"note_id": f"n{number:02}", "author": f"ada{number}", "stars": number % 5}
            for number in range(_NOTES)
        ]
        self._accounts = [
            {"holder": f"holder-{random_ids[1]}-{number}", "pin": f"pin-{random_ids[0]}-{number}", "funds": 7}
            for number in range(_ACCOUNTS)
        ]
        self._cluster = cluster
        self.canary.write_text(f"canary-{random_ids[2]}\n")
        book = TokenBook(tokens_path(home))
        self.attacker = book.create("attacker", [f"read:view:{name}" for name in GRANTED], None)[1]
        self.good = book.create("good", ["read:view:notes"], None)[1]
        self._admin = book.create("root", ["admin"], None)[1]

    def fill(self) -> None:
        """Write the rows and follow the log until every view has them. After this call nothing writes to the stores."""
        # Imported here, because most runs do not need it.
        from faults.views.follower_thread import following

        for topic in app.topics:
            ensure_declared(self._cluster, topic, topic.name, 1)
        self.server.start()
        client = HttpClient(self.server.port, self._admin, _WAIT_S)
        with contextlib.ExitStack() as stack:
            for view in app.views:
                stack.enter_context(following(self._cluster, view, [], self.home))
            tokens = {}
            for name, rows in (("notes-topic", self.notes), ("accounts-topic", self._accounts)):
                for at in range(0, len(rows), 900):
                    body = {"records": [{"value": row} for row in rows[at : at + 900]]}
                    reply = client.post(f"/v1/topics/{name}/records", body)
                    assert not reply.code, reply.text
                    tokens[name] = reply.document["token"]
            for view in app.views:
                query = {"after": tokens[view.topic.name], "wait": "30s", "limit": "1"}
                reply = client.get(f"/v1/views/{view.name}/rows", query)
                assert not reply.code, reply.text
        client.close()

    def state(self) -> dict[str, str]:
        """Return digests of the stores' rows, read without the product, and of every file beside them."""
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as connection:
            rows = hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
        digests = {"the rows of shop.db": rows}
        for path in sorted(self.home.rglob("*")):
            name = str(path.relative_to(self.home))
            if path.is_file() and not _VOLATILE.fullmatch(name):
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        for path in self.home.parent.iterdir():
            if path != self.home:
                digests[f"../{path.name}"] = "" if path.is_dir() else path.read_text()
        ends = {topic.name: self._cluster.ends(topic.name) for topic in app.topics}
        return {**digests, "the log": str(ends)}

    def spell(self, text: str, hidden: str) -> str:
        """Replace the placeholders with names and paths."""
        for placeholder, value in (
            ("@canary", str(self.canary)),
            ("@store", str(self.store)),
            ("@home", str(self.home)),
            ("@hidden", hidden),
        ):
            text = text.replace(placeholder, value)
        return text


@contextlib.contextmanager
def injection_scene(home: Path, rng: random.Random, without: str) -> Iterator[InjectionScene]:
    with BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap)
        server = ServeProcess(home / "world" / "app", _APP, broker.bootstrap, _SETTINGS, without=without)
        scene = InjectionScene(home / "world" / "app", server, cluster, rng)
        try:
            scene.fill()
            yield scene
        finally:
            server.kill()


def row_values(row: Any) -> tuple[Any, ...]:
    """Return the values of a row that is an object or an array."""
    return tuple(row.values()) if isinstance(row, dict) else tuple(row)
