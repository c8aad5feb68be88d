"""A reader opens few files to follow the GET of a row from the socket to the store and back."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from pathlib import Path

from faults.serve.local_server import served
from faults.views.follower_thread import following
from faults.views.scripted_flow import ScriptedFlow
from headrace.client.cluster import Cluster
from tests.unit.repository.walks import documented_files, trace_files

GET_FILES_MAX = 14
"""The maximum number of files. Lower it when the operation needs fewer files; never raise it."""
_REQUESTS = 5
_DEADLINE_S = 30.0


def test_a_get_of_a_row_runs_code_in_few_files(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("walk"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 1, "note": None})])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows)
    walk = documented_files("get")
    assert len(walk) <= GET_FILES_MAX
    # Only threads that start inside the block are traced, so the server must start there.
    with trace_files() as files, served(flow.app, cluster, tmp_path) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

        def traced_request() -> set[str]:
            files.clear()
            connection.request("GET", f"/v1/views/{flow.view.name}/rows/a")
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            return set(files)

        # The first requests also create objects that later requests use, so they are not counted.
        for _ in range(_REQUESTS):
            traced_request()
        common = set.intersection(*(traced_request() for _ in range(_REQUESTS)))
        # The monitor and the sweep run beside some requests, for a while also beside each. They pause, so the
        # intersection of enough requests excludes them.
        deadline = time.monotonic() + _DEADLINE_S
        while not common <= set(walk) and time.monotonic() < deadline:
            common &= traced_request()
        connection.close()
    assert sorted(common) == sorted(walk)
