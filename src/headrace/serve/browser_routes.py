"""The client for pages, as files: served as they are in the package, so that a page needs nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from headrace.serve.route import Answer, Call, Route, Told
from headrace.serve.scope import PUBLIC

__all__ = ["BROWSER_FILES", "BROWSER_ROUTES"]

_SCRIPT = "text/javascript; charset=utf-8"
BROWSER_FILES = {
    "headrace.js": ("The client for pages", _SCRIPT),
    "offline.js": ("Copies and writes without the network", _SCRIPT),
    "changes.js": ("A part of the client: changes", _SCRIPT),
    "copy.js": ("A part of the client: copies", _SCRIPT),
    "database.js": ("A part of the client: what is kept", _SCRIPT),
    "exchange.js": ("A part of the client: errors and values", _SCRIPT),
    "outbox.js": ("A part of the client: writes that wait", _SCRIPT),
    "headrace.d.ts": ("The client's types", "text/plain; charset=utf-8"),
    "offline.d.ts": ("Types of what works without the network", "text/plain; charset=utf-8"),
}


def _serving(name: str, media_type: str) -> Callable[[Call], Awaitable[Answer]]:
    body = resources.files("headrace.serve").joinpath("browser", name).read_bytes()
    headers = {
        # Asked for each time, and sent only if it is another: one release's parts are never mixed with another's.
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Cache-Control": "public, no-cache",
    }

    async def serve_file(call: Call) -> Answer:
        known = {one.strip().removeprefix("W/") for one in call.headers.get("if-none-match", "").split(",")}
        if headers["ETag"] in known:
            return Answer(b"", 304, headers=headers)
        return Answer(body, media_type=media_type, headers=headers)

    serve_file.__name__ = "client_" + name.replace(".", "_")
    return serve_file


BROWSER_ROUTES = tuple(
    Route(
        *("GET", f"/client/{name}", PUBLIC, _serving(name, media_type), about),
        answers={
            200: Told("The file.", media_type=media_type.partition(";")[0]),
            304: Told("It is what If-None-Match says."),
        },
    )
    for name, (about, media_type) in BROWSER_FILES.items()
)
