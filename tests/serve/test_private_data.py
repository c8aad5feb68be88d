"""The data directory of ``headrace run``: private files, and an access log."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.serve.http import Http
from faults.serve.local_server import token_for
from faults.serve.shop_app import Product
from faults.wait import until
from headrace import App
from headrace.client.cluster import Cluster
from headrace.runtime.run import Run
from headrace.settings import AlertSettings, LogSettings, ServeSettings, Settings
from headrace.stores import Delta, Search, SQLite

Fresh = Callable[[str], str]


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _readable_by_others(root: Path) -> list[str]:
    """Return the files that other users can reach. A private directory hides its content."""
    if stat.S_IMODE(root.stat().st_mode) & 0o077 == 0:
        return []
    inside = [file for path in root.iterdir() for file in _readable_by_others(path)] if root.is_dir() else []
    return [str(root), *inside]


@pytest.mark.usefixtures("_open_umask")
def test_the_data_of_a_run_is_private_and_requests_are_logged_with_their_token(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name, elsewhere = fresh("private"), tmp_path / "elsewhere"
    elsewhere.mkdir(0o755)
    app = App(name)
    products = app.table(f"{name}-products", Product, key="product_id")
    stores = {"lite": SQLite(), "delta": Delta(), "words": Search()}
    stores |= {"apart": SQLite(str(elsewhere / "apart.db")), "lake": Delta(str(elsewhere / "lake"))}
    stores |= {"index": Search(str(elsewhere / "index"))}
    for kind, store in stores.items():
        app.view(f"{name}-{kind}", products, store=store)
    data = tmp_path / "created" / "data"
    settings = Settings(
        data=data,
        log=LogSettings(bootstrap_servers=cluster.bootstrap),
        serve=ServeSettings(listen="127.0.0.1:0"),
        alerts=AlertSettings(every_s=0),
    )
    results: list[str] = []
    run = Run(app, settings, note=results.append)
    try:
        run.start()
        assert run.server is not None
        http = Http(run.server.port)
        record = {"value": {"product_id": "p", "name": "n", "price": 1}}
        token = http.post(
            f"/v1/topics/{products.name}/records", record, headers={"Idempotency-Key": "k"}
        ).expect(200)["token"]
        for kind in stores:
            reply = http.get(f"/v1/views/{name}-{kind}/rows", after=token, wait="30s")
            assert len(reply.expect(200)["rows"]) == 1, (kind, results)
        token_for(data, "one", "admin")
        until(lambda: http.get("/v1/views").status == 401, "the token to be needed")
    finally:
        run.close()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert _readable_by_others(data.parent) == []
    # The parent folder keeps its mode.
    assert _readable_by_others(elsewhere) == [str(elsewhere)]
    lines = [json.loads(line) for line in (data / "access.log").read_text().splitlines()]
    assert (lines[0]["method"], lines[0]["status"], lines[0]["peer"]) == ("POST", 200, "127.0.0.1")
    assert lines[-1]["code"] == "HR-SERVE-LOGIN"
