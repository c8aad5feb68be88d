"""The route table as a page: no script, no picture, nothing from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence

from headrace.serve.route import Route
from headrace.serve.scope import PUBLIC

__all__ = ["CSP", "docs_page"]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;"
    "background:#fff}"
    "h2{font-size:1.1rem;margin:2.5rem 0 .3rem}code{font-family:ui-monospace,monospace;background:#f3f3f3;"
    "padding:.1rem .3rem;border-radius:3px}table{border-collapse:collapse;width:100%;font-size:.9rem}"
    "td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-top:1px solid #ddd}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}code{background:#2c2c2c}"
    "td,th{border-color:#444}a{color:#8bf}}"
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CSP = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def docs_page(routes: Sequence[Route]) -> bytes:
    parts = "".join(map(_part, routes))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        "<h1>Headrace</h1><p>Every answer says the position that it reflects. For programs: "
        f'<a href="/openapi.json">openapi.json</a>.</p>{parts}</body></html>'
    ).encode()


def _part(route: Route) -> str:
    name = route.path.replace(":path}", "}")
    scope = f"<p>Scope: <code>{_text(route.action)}</code></p>" if route.action != PUBLIC else ""
    about = f"<p>{_text(route.summary)}. {_text(route.about)}</p>"
    rows = "".join(
        f"<tr><td><code>{_text(one.name)}</code></td><td>{one.where}</td><td>{_text(one.about)}</td></tr>"
        for one in route.parameters
    )
    table = f"<table><tr><th>Parameter</th><th>In</th><th>What it is</th></tr>{rows}</table>" if rows else ""
    kinds = f"{route.method}, WebSocket" if route.socket else route.method
    return f"<h2><code>{kinds} {_text(name)}</code></h2>{about}{scope}{table}"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
