"""Generates the documentation of all routes from the route table: an OpenAPI 3.1 document and a static HTML page.

The schemas come from the Structs of bodies and responses. The page has no scripts and no external resources.
"""

from __future__ import annotations

import base64
import hashlib
import html
import http
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from headrace.serve.http.limits import Limits
from headrace.serve.http.problem import MEDIA_TYPE, ProblemDocument
from headrace.serve.http.route import EVENT_STREAM, JSON, Body, Parameter, ResponseDoc, Route
from headrace.serve.http.tokens import PERMISSIONS, PUBLIC
from headrace.serve.monitor.documents import NODES

__all__ = ["ALWAYS", "CSP", "docs_page", "openapi"]

ALWAYS = (400, 401, 403, 431, 500)
"""Error statuses that any route can return, except that public routes never return 401."""
_REFERENCE = "#/components/schemas/{name}"


def openapi(routes: Sequence[Route], limits: Limits) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path.replace(":path}", "}"), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": f"Views and topics of an app. A page has at most {limits.rows_max} rows, a body at most"
            f" {limits.body_bytes_max} bytes.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(routes),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Created by headrace token create. Scopes: " + ", ".join(PERMISSIONS),
                }
            },
        },
    }


def _schemas(routes: Iterable[Route]) -> dict[str, Any]:
    structs: list[type[msgspec.Struct]] = [*NODES, ProblemDocument]
    for route in routes:
        structs += [] if route.body is None else _structs_of(route.body)
        structs += [] if route.websocket is None else [route.websocket]
        structs += [response.schema for response in route.responses.values() if response.schema is not None]
    _, components = msgspec.json.schema_components(dict.fromkeys(structs), ref_template=_REFERENCE)
    return dict(components)


def _structs_of(body: Body) -> tuple[type[msgspec.Struct], ...]:
    return body.schema if isinstance(body.schema, tuple) else (body.schema,)


def _reference(*structs: type[msgspec.Struct]) -> dict[str, Any]:
    references = [{"$ref": _REFERENCE.format(name=struct.__name__)} for struct in structs]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _schema(response: ResponseDoc) -> dict[str, Any]:
    if response.schema is None:
        return {"type": "object" if response.media_type == JSON else "string"}
    return _reference(response.schema)


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id or route.handle.__name__,
        "summary": route.summary,
        **({"description": route.description} if route.description else {}),
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "security": [{"token": []}] if route.permission != PUBLIC else [],
        "x-headrace-scope": route.permission,
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "description": route.body.description,
            "content": {JSON: {"schema": _reference(*_structs_of(route.body))}},
        }
    if route.websocket:
        # OpenAPI cannot describe WebSockets.
        operation["x-headrace-websocket"] = {"firstMessage": _reference(route.websocket)}
    responses: dict[str, Any] = {}
    for status, response in route.responses.items():
        # OpenAPI 3.1 cannot describe the events of a stream.
        schema = {} if response.media_type == EVENT_STREAM else {"schema": _schema(response)}
        content = {} if status == 304 else {"content": {response.media_type: schema}}
        responses[str(status)] = {"description": response.description, **content}
    for status in sorted({*ALWAYS, *route.error_statuses}):
        if str(status) not in responses and not (route.permission == PUBLIC and status == 401):
            responses[str(status)] = {
                "description": http.HTTPStatus(status).phrase,
                "content": {MEDIA_TYPE: {"schema": _reference(ProblemDocument)}},
            }
    return operation | {"responses": responses}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.description,
        "schema": parameter.schema,
        **({"example": parameter.example} if parameter.example is not None else {}),
    }


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
    sections = "".join(map(_section, routes))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        "<h1>Headrace</h1><p>A response of a view names the log position that it reflects. For programs: "
        f'<a href="/openapi.json">openapi.json</a>.</p>{sections}</body></html>'
    ).encode()


def _section(route: Route) -> str:
    name = route.path.replace(":path}", "}")
    scope = f"<p>Scope: <code>{_text(route.permission)}</code></p>" if route.permission != PUBLIC else ""
    description = f"<p>{_text(route.summary)}. {_text(route.description)}</p>"
    rows = "".join(
        f"<tr><td><code>{_text(parameter.name)}</code></td><td>{parameter.where}</td>"
        f"<td>{_text(parameter.description)}</td></tr>"
        for parameter in route.parameters
    )
    table = f"<table><tr><th>Parameter</th><th>In</th><th>Description</th></tr>{rows}</table>" if rows else ""
    kinds = f"{route.method}, WebSocket" if route.websocket else route.method
    return f"<h2><code>{kinds} {_text(name)}</code></h2>{description}{scope}{table}"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
