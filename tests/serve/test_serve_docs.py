"""The commands of docs/serve.md, run against the shop."""

from __future__ import annotations

import json
import re
import subprocess
from decimal import Decimal
from pathlib import Path

from examples.shop import Category, Product, app, products
from faults.serve.local_server import served
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared

_PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
_SOLD = [("p01", "books", 12), ("p02", "books", 30), ("p03", "garden", 8), ("p04", "kitchen", 90)]


def test_the_commands_at_the_top_of_the_page_return_rows_of_the_shop(
    cluster: Cluster, tmp_path: Path
) -> None:
    top = _PAGE.read_text(encoding="utf-8").splitlines()[:10]
    requests = [line.strip() for line in top if line.startswith("    curl ")]
    ensure_declared(cluster, products, products.name, 1)
    shop_products = [
        Product(name, f"a {name}", Category(kind), Decimal(price)) for name, kind, price in _SOLD
    ]
    produce(cluster, products.name, [products.encode(product) for product in shop_products])
    view = next(view for view in app.views if view.topic is products)
    product_ids = []
    with following(cluster, view, app.flows, tmp_path), served(app, cluster, tmp_path) as http:
        until(lambda: len(http.get(f"/v1/views/{view.name}/rows").json.get("rows", [])) == 4, "the rows")
        for command in requests:
            local_command = command.replace("127.0.0.1:8180", f"127.0.0.1:{http.port}")
            done = subprocess.run(["bash", "-c", local_command], capture_output=True, check=True, timeout=240)
            document = json.loads(done.stdout)
            product_ids.append([row["product_id"] for row in document.get("rows", [document.get("row")])])
    assert product_ids == [["p01"], ["p04", "p02", "p01"], ["p01"]]


def test_the_documented_command_runs_the_shop() -> None:
    (line,) = re.findall(r"^    headrace (run .+)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    makefile = (_PAGE.parents[1] / "Makefile").read_text(encoding="utf-8")
    app_and_feed, serve = line.split(" --serve ")
    assert f"headrace {app_and_feed}" in makefile
    assert serve == "127.0.0.1:8180"
