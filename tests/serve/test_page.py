"""What the page on serving asks of the shop, by the commands that it shows."""

from __future__ import annotations

import json
import re
import subprocess
from decimal import Decimal
from pathlib import Path

from examples.shop import Category, Product, app, products
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from tests.serve.serving import served
from tests.support.waiting import until
from tests.views.seeing import following, produce

_PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
_SOLD = [("p01", "books", 12), ("p02", "books", 30), ("p03", "garden", 8), ("p04", "kitchen", 90)]


def test_the_commands_at_the_top_of_the_page_give_rows_of_the_shop(cluster: Cluster, tmp_path: Path) -> None:
    top = _PAGE.read_text(encoding="utf-8").splitlines()[:10]
    asked = [line.strip() for line in top if line.startswith("    curl ")]
    ensure_declared(cluster, products, products.name, 1)
    sold = [Product(name, f"a {name}", Category(kind), Decimal(price)) for name, kind, price in _SOLD]
    produce(cluster, products.name, [products.encode(one) for one in sold])
    view = next(one for one in app.views if one.topic is products)
    found = []
    with following(cluster, view, app.flows, tmp_path), served(app, cluster, tmp_path) as http:
        until(lambda: len(http.get(f"/v1/views/{view.name}/rows").json.get("rows", [])) == 4, "the rows")
        for command in asked:
            here = command.replace("127.0.0.1:8180", f"127.0.0.1:{http.port}")
            done = subprocess.run(["bash", "-c", here], capture_output=True, check=True, timeout=240)
            told = json.loads(done.stdout)
            found.append([row["product_id"] for row in told.get("rows", [told.get("row")])])
    assert found == [["p01"], ["p04", "p02", "p01"], ["p01"]]


def test_what_the_page_says_of_running_the_shop_is_what_runs_it() -> None:
    (line,) = re.findall(r"^    headrace (run .+)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    makefile = (_PAGE.parents[1] / "Makefile").read_text(encoding="utf-8")
    app_and_feed, serve = line.split(" --serve ")
    assert f"headrace {app_and_feed}" in makefile
    assert serve == "127.0.0.1:8180"
