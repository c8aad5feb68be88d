"""The scene for attacks on the server: a log, a view with rows, and ``headrace serve`` in front of both.

The log and the store are built once per process and copied for each run. The server requires a token, so that attacks
before the login are possible. ``reader`` may read everything, ``writer`` may write one topic.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType

from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from faults.views.follower_process import FollowerProcess
from faults.views.scripted_flow import ScriptedFlow, view_of
from headrace.client.cluster import Cluster
from headrace.serve.http.tokens import TokenBook, tokens_path
from headrace.stores.registry import open_reader

__all__ = ["APP", "INPUT", "ROWS", "VIEW", "ServedShop", "amount_of"]

APP = "faults.serve.derived_app:app"
VIEW = "derived"
INPUT = f"{VIEW}-in"
ROWS = 1_000
_NOTE = "x" * 10_000
_BUILT_S_MAX = 60.0
_PG_READY = re.compile(rb"PostgreSQL protocol at 127\.0\.0\.1:(\d+)\s")


def amount_of(key: int) -> int:
    """The amount in row ``k<key>``."""
    return 7 * key + 1


class ServedShop:
    """``settings`` are those of ``[serve]``. ``without`` names a protection in ``faults.unprotected.registry`` to
    remove.
    """

    def __init__(self, home: Path, settings: Mapping[str, int], *, without: str = "") -> None:
        self.home = home
        shutil.copytree(_template(), home, dirs_exist_ok=True)
        self.broker = BrokerProcess(home / "log", forked=True)
        self.app_data = home / "app"
        book = TokenBook(tokens_path(self.app_data))
        self.reader = book.create("reader", ["read:view:*", "read:topic:*", "read:operations"], None)[1]
        self.writer = book.create("writer", ["read:view:*", f"write:topic:{INPUT}"], None)[1]
        self.admin = book.create("admin", ["admin"], None)[1]
        self.server = ServeProcess(
            self.app_data,
            APP,
            self.broker.bootstrap,
            {"pg_listen": "'127.0.0.1:0'", **settings},
            without=without,
        )
        self.pg_port = 0

    def __enter__(self) -> ServedShop:
        try:
            self.broker.start()
            self.start_server()
        except BaseException:
            self.close()
            raise
        return self

    def start_server(self) -> None:
        self.server.start()
        deadline = time.monotonic() + _BUILT_S_MAX
        while (ports := _PG_READY.findall(self.server.log.read_bytes())) == []:
            assert time.monotonic() < deadline, "the server does not respond in PostgreSQL's protocol"
            time.sleep(0.005)
        self.pg_port = int(ports[-1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.server.kill()
        self.broker.close()

    def unexpected_exceptions(self) -> list[str]:
        """Return the unexpected exceptions of the server and the broker."""
        return [
            *(
                f"the server logged an unexpected exception:\n{fault}"
                for fault in self.server.unexpected_exceptions()
            ),
            *(
                f"the broker logged an unexpected exception:\n{trace}"
                for trace in self.broker.unexpected_exceptions()
            ),
        ]


@cache
def _template() -> Path:
    home = Path(tempfile.mkdtemp(prefix="headrace-served-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "app").mkdir()
    with BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap)
        cluster.ensure_topic(INPUT, 1, {})
        flow = ScriptedFlow(cluster, VIEW, partitions=1)
        flow.begin()
        flow.batch(
            [
                (f"k{key}", {"product": f"k{key}", "amount": amount_of(key), "note": _NOTE})
                for key in range(ROWS)
            ]
        )
        follower = FollowerProcess(broker.bootstrap, "sqlite", str(home / "app" / "shop.db"), VIEW)
        try:
            _wait_until_served(home / "app")
        finally:
            follower.kill()
        broker.stop()
    return home


def _wait_until_served(data: Path) -> None:
    app, _, view = view_of(VIEW)
    deadline = time.monotonic() + _BUILT_S_MAX
    while time.monotonic() < deadline:
        reader = open_reader(view, app.name, data)
        if reader is not None:
            try:
                if reader.state(view.name) is not None:
                    return
            finally:
                reader.close()
        time.sleep(0.02)
    raise AssertionError("the view of the shop was not built")
