"""Serves the web UI at ``/`` and the JavaScript client under ``/client/``. The files are read once at start.

The web UI loads its data from the API with the user's token.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.serve.errors import NotFound
from headrace.serve.http.route import Feature, Request, Response, ResponseDoc, Route, text
from headrace.serve.http.tokens import PUBLIC
from headrace.serve.page.assets import CLIENT_FILES, INDEX, PAGE_FILES, Asset

__all__ = ["PAGE_CSP", "Page"]

PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_NAME_CHARS_MAX = 200
_REVALIDATE = "public, no-cache"
"""A browser revalidates each file by its ETag, so files of two releases never mix."""

_CLIENT_SUMMARIES = {
    "headrace.js": "The JavaScript client",
    "offline.js": "The JavaScript client: offline copies and writes",
    "changes.js": "A module of the JavaScript client: changes",
    "copy.js": "A module of the JavaScript client: copies",
    "database.js": "A module of the JavaScript client: local storage",
    "exchange.js": "A module of the JavaScript client: errors and values",
    "outbox.js": "A module of the JavaScript client: pending writes",
    "headrace.d.ts": "The JavaScript client: types",
    "offline.d.ts": "The JavaScript client: types of offline copies and writes",
}


class Page(Feature):
    async def page(self, request: Request) -> Response:
        return _page_response(request, INDEX)

    async def page_file(self, request: Request) -> Response:
        asset = PAGE_FILES.get(request.path_values["file"])
        if asset is None:
            raise NotFound(
                "the page has no file with this name", hint="reload the page, in case the server was upgraded"
            )
        return _page_response(request, asset)

    async def client_file(self, request: Request) -> Response:
        asset = CLIENT_FILES[request.path.removeprefix("/client/")]
        headers = {"ETag": asset.etag, "Cache-Control": _REVALIDATE}
        if asset.etag in _known_etags(request):
            return Response(b"", 304, headers=headers)
        return Response(asset.body, media_type=asset.media_type, headers=headers)

    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            *("GET", "/", PUBLIC, page, "The web UI"),
            description="The web UI sends requests only to this server.",
            responses={
                200: ResponseDoc("The page.", media_type="text/html"),
                304: ResponseDoc("If-None-Match has the current ETag."),
            },
        ),
        Route(
            *("GET", "/page/{file:path}", PUBLIC, page_file, "A file of the web UI"),
            parameters=(
                text(
                    "file",
                    "The name of the file.",
                    chars_max=_NAME_CHARS_MAX,
                    where="path",
                    example="frame.js",
                ),
            ),
            responses={
                200: ResponseDoc("The file.", media_type="*/*"),
                304: ResponseDoc("If-None-Match has the current ETag."),
            },
            error_statuses=(404,),
        ),
    )


Page.routes += tuple(
    Route(
        *("GET", f"/client/{name}", PUBLIC, Page.client_file, summary),
        responses={
            200: ResponseDoc("The file.", media_type=CLIENT_FILES[name].media_type.partition(";")[0]),
            304: ResponseDoc("If-None-Match has the current ETag."),
        },
        operation_id="client_" + name.replace(".", "_"),
    )
    for name, summary in _CLIENT_SUMMARIES.items()
)


def _page_response(request: Request, asset: Asset) -> Response:
    is_gzipped = _accepts_gzip(request.headers.get("accept-encoding", ""))
    # The gzipped body is a different representation and needs its own ETag.
    etag = f'{asset.etag[:-1]}-gzip"' if is_gzipped else asset.etag
    headers = {
        "ETag": etag,
        "Cache-Control": _REVALIDATE,
        "Vary": "Accept-Encoding",
        "Content-Security-Policy": PAGE_CSP,
    }
    if etag in _known_etags(request):
        return Response(b"", 304, headers=headers)
    if is_gzipped:
        return Response(
            asset.gzipped, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"}
        )
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _known_etags(request: Request) -> set[str]:
    return {etag.strip().removeprefix("W/") for etag in request.headers.get("if-none-match", "").split(",")}


def _accepts_gzip(accepted: str) -> bool:
    """Return whether the header lists gzip with a weight above zero."""
    codings = [coding.replace(" ", "") for coding in accepted.lower().split(",")]
    return any(
        coding == "gzip" or (coding.startswith("gzip;q=") and coding[7:].strip("0.")) for coding in codings
    )
