"""The static files of the page and the JavaScript client. They are read once, so a request never opens a file."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from urllib.parse import urljoin

__all__ = ["CLIENT_FILES", "INDEX", "PAGE_FILES", "Asset", "imported_scripts"]

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLES_MARK = b"<!-- styles of sections -->"
_SCRIPTS_MARK = b"<!-- scripts of the page -->"
_FIRST_SCRIPT = "/page/frame.js"
# Matches static imports, which start a line in our scripts. A script that a function loads by import() does not match.
_IMPORT = re.compile(rb'^(?:import|export)\b[^"\';]*"([^"\']+\.js)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'

    @property
    def gzipped(self) -> bytes:
        """The gzipped body. It is compressed at the first request and then cached."""
        return _gzipped(self.body)


@functools.cache
def _gzipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def _files_under(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_under(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _page_files() -> dict[str, Asset]:
    """Return the scripts, styles and images by their names under ``/page/``."""
    assets = {}
    for name, body in _files_under(resources.files("headrace.serve.page").joinpath("files")):
        media_type = _MEDIA_TYPES.get(name[name.rfind(".") :])
        if media_type is not None:
            assets[name] = Asset(body, media_type)
    return assets


def _client_files() -> dict[str, Asset]:
    """Return the files of the JavaScript client by their names under ``/client/``."""
    return {
        name: Asset(body, _MEDIA_TYPES.get(name[name.rfind(".") :], "text/plain; charset=utf-8"))
        for name, body in _files_under(resources.files("headrace.serve.page").joinpath("browser"))
    }


def _index(pages: Mapping[str, Asset], clients: Mapping[str, Asset]) -> Asset:
    """Return the HTML page with a link to the style of each section, and preload links to all scripts.

    So ``index.html`` does not change when a section is added, and a browser loads all scripts in parallel.
    """
    body = resources.files("headrace.serve.page").joinpath("files", "index.html").read_bytes()
    styles = [f"/page/{name}" for name in pages if name.startswith("sections/") and name.endswith(".css")]
    bodies = {f"/page/{name}": asset.body for name, asset in pages.items()}
    bodies |= {f"/client/{name}": asset.body for name, asset in clients.items()}
    for mark, relation, addresses in (
        (_STYLES_MARK, "stylesheet", styles),
        (_SCRIPTS_MARK, "modulepreload", imported_scripts(_FIRST_SCRIPT, bodies)),
    ):
        assert body.count(mark) == 1
        links = "".join(f'<link rel="{relation}" href="{address}">\n' for address in addresses)
        body = body.replace(mark, links.encode())
    return Asset(body, "text/html; charset=utf-8")


def imported_scripts(first: str, scripts: Mapping[str, bytes]) -> list[str]:
    """Return the addresses of the first script and of all its direct and indirect imports, in breadth-first order."""
    addresses = {first: None}
    pending = [first]
    while pending:
        address = pending.pop(0)
        for target in _IMPORT.findall(scripts[address]):
            imported = urljoin(address, target.decode())
            if imported not in addresses:
                addresses[imported] = None
                pending.append(imported)
    return [*addresses]


PAGE_FILES = _page_files()
CLIENT_FILES = _client_files()
INDEX = _index(PAGE_FILES, CLIENT_FILES)
