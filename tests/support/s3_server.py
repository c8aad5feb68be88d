"""moto's S3 server as a process, behind a gate that logs every request. A rule makes the gate hold, refuse or spoil
some requests.

    python -m tests.support.s3_server HOME

``HOME/port`` has its port. ``HOME/requests`` has a line per request: method, address, range. ``HOME/rule`` is JSON,
read for each request. It applies to requests of ``method`` (any if empty) after the first ``passing`` ones. The gate
holds them until the rule is removed, responds with 503, or changes one byte of a response to a range request.
``HOME/injected_faults`` has the number of requests to which a rule was applied.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

__all__ = ["main"]


class Gate:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._app = DomainDispatcherApplication(create_backend_app)
        self._mutex = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._injected_faults = 0

    def __call__(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        rule = self._log_and_match_rule(environ, method)
        if rule is None:
            return self._app(environ, respond)  # type: ignore[no-any-return]
        if rule["action"] == "refuse":
            respond("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if rule["action"] == "hold":
            while self._rule() == rule:
                time.sleep(0.005)
            return self._app(environ, respond)  # type: ignore[no-any-return]
        body = bytearray(b"".join(self._app(environ, respond)))
        if body:
            body[len(body) // 2] ^= 1
        return [bytes(body)]

    def _log_and_match_rule(self, environ: dict[str, Any], method: str) -> dict[str, Any] | None:
        """Log the request; return the rule if it applies to the request."""
        with self._mutex:
            address = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}".rstrip("?")
            line = f"{method} {address} {environ.get('HTTP_RANGE', '')}".rstrip()
            with (self._home / "requests").open("a") as file:
                file.write(line + "\n")
            rule = self._rule()
            if rule is None or (rule["method"] and rule["method"] != method):
                return None
            if rule["action"] == "spoil" and "HTTP_RANGE" not in environ:
                return None
            self._seen[rule["name"]] += 1
            if self._seen[rule["name"]] <= rule["passing"]:
                return None
            self._injected_faults += 1
            fresh = self._home / "injected_faults.new"
            fresh.write_text(str(self._injected_faults))
            fresh.rename(self._home / "injected_faults")
            return rule

    def _rule(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._home / "rule").read_text())
        except FileNotFoundError:
            return None
        return found


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        return


def main(home: Path) -> None:
    server = make_server("127.0.0.1", 0, Gate(home), threaded=True, request_handler=Quiet)  # type: ignore[arg-type]
    fresh = home / "port.new"
    fresh.write_text(str(server.port))
    fresh.rename(home / "port")
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
