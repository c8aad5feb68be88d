"""The files of the page, read once: whoever asks names one of them, and no name from a request reaches the disk."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from headrace.serve.page.page_scripts import scripts_from

__all__ = ["INDEX", "PAGE_FILES", "PageFile"]

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLES_MARK = b"<!-- styles of sections -->"
_SCRIPTS_MARK = b"<!-- scripts of the page -->"
_FIRST_SCRIPT = "/page/frame.js"


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'

    @property
    def packed(self) -> bytes:
        """As gzip, made when it is first asked for."""
        return _packed(self.body)


@functools.cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def _walk(folder: Traversable, under: str = "") -> Iterator[tuple[str, bytes]]:
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _walk(one, f"{under}{one.name}/")
        else:
            yield under + one.name, one.read_bytes()


def _read() -> dict[str, PageFile]:
    """By their names behind ``/page/``. What is no script, style or picture stays where it is."""
    found = {}
    for name, body in _walk(resources.files("headrace.serve.page").joinpath("files")):
        media_type = _MEDIA_TYPES.get(name[name.rfind(".") :])
        if media_type is not None:
            found[name] = PageFile(body, media_type)
    return found


def _index(files: Mapping[str, PageFile]) -> PageFile:
    """With a link to the style of each section that has one, so that a section adds nothing but its own files; and to
    all scripts, so that a browser asks for them at once, and not for each when it has read the one that imports it."""
    body = resources.files("headrace.serve.page").joinpath("files", "index.html").read_bytes()
    styles = [f"/page/{name}" for name in files if name.startswith("sections/") and name.endswith(".css")]
    for mark, kind, names in (
        (_STYLES_MARK, "stylesheet", styles),
        (_SCRIPTS_MARK, "modulepreload", _scripts(files)),
    ):
        assert body.count(mark) == 1
        links = "".join(f'<link rel="{kind}" href="{name}">\n' for name in names)
        body = body.replace(mark, links.encode())
    return PageFile(body, "text/html; charset=utf-8")


def _scripts(files: Mapping[str, PageFile]) -> list[str]:
    clients = _walk(resources.files("headrace.serve").joinpath("browser"))
    bodies = {f"/page/{name}": file.body for name, file in files.items()}
    return scripts_from(_FIRST_SCRIPT, bodies | {f"/client/{name}": body for name, body in clients})


PAGE_FILES = _read()
INDEX = _index(PAGE_FILES)
