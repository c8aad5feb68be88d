"""The page at ``/`` and its files. What is on it, it asks for with the token of whoever looks at it."""

from __future__ import annotations

from headrace.serve.errors import NotThere
from headrace.serve.page.page_files import INDEX, PAGE_FILES, PageFile
from headrace.serve.parameter import text
from headrace.serve.route import Answer, Call, Route, Told
from headrace.serve.scope import PUBLIC

__all__ = ["PAGE_CSP", "PAGE_ROUTES"]

PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_NAME_CHARS_MAX = 200


async def page(call: Call) -> Answer:
    return _answer(call, INDEX)


async def page_file(call: Call) -> Answer:
    found = PAGE_FILES.get(call.names["file"])
    if found is None:
        raise NotThere("the page has no such file", hint="load the page again: it may be of another release")
    return _answer(call, found)


def _answer(call: Call, file: PageFile) -> Answer:
    is_packed = _takes_gzip(call.headers.get("accept-encoding", ""))
    # Two forms of one file are two entities.
    etags = {False: file.etag, True: f'{file.etag[:-1]}-gzip"'}
    headers = {
        # Asked for each time, and sent only if it is another: one release's parts are never mixed with another's.
        "ETag": etags[is_packed],
        "Cache-Control": "public, no-cache",
        "Vary": "Accept-Encoding",
        "Content-Security-Policy": PAGE_CSP,
    }
    known = {one.strip().removeprefix("W/") for one in call.headers.get("if-none-match", "").split(",")}
    if etags[is_packed] in known:
        return Answer(b"", 304, headers=headers)
    if is_packed:
        return Answer(
            file.packed, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"}
        )
    return Answer(file.body, media_type=file.media_type, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    """Named, and not with a weight of nothing. Anything else gets the file as it is, which everybody takes."""
    words = [one.replace(" ", "") for one in accepted.lower().split(",")]
    return any(one == "gzip" or (one.startswith("gzip;q=") and one[7:].strip("0.")) for one in words)


PAGE_ROUTES = (
    Route(
        *("GET", "/", PUBLIC, page, "The operator's page"),
        about="It asks this server for what it shows, and nobody else for anything.",
        answers={
            200: Told("The page.", media_type="text/html"),
            304: Told("It is what If-None-Match says."),
        },
    ),
    Route(
        *("GET", "/page/{file:path}", PUBLIC, page_file, "A file of the operator's page"),
        parameters=(text("file", "Its name.", chars_max=_NAME_CHARS_MAX, where="path", example="frame.js"),),
        answers={
            200: Told("The file.", media_type="*/*"),
            304: Told("It is what If-None-Match says."),
        },
        problems=(404,),
    ),
)
