"""OpenAPI 3.1 of the route table."""

from __future__ import annotations

import http
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from headrace.serve.limits import Limits
from headrace.serve.parameter import Parameter
from headrace.serve.problem import MEDIA_TYPE
from headrace.serve.route import JSON, Route
from headrace.serve.schemas import SCHEMAS
from headrace.serve.scope import ACTIONS, PUBLIC

__all__ = ["ALWAYS", "openapi"]

ALWAYS = (400, 401, 403, 431, 500)
"""What any route may answer with; those that need no token have no 401."""
_CONVERTOR = re.compile(r":path\}")


def openapi(routes: Sequence[Route], limits: Limits) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_CONVERTOR.sub("}", route.path), {})[route.method.lower()] = _operation(route)
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
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "headrace token create. Scopes: " + ", ".join(ACTIONS),
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": route.handle.__name__,
        "summary": route.summary,
        **({"description": route.about} if route.about else {}),
        "parameters": [_parameter(one) for one in route.parameters],
        "security": [{"token": []}] if route.action != PUBLIC else [],
        "x-headrace-scope": route.action,
        "responses": {},
    }
    if route.body is not None:
        schema = {"$ref": f"#/components/schemas/{route.body.schema}"}
        told["requestBody"] = {
            "required": True,
            "description": route.body.about,
            "content": {JSON: {"schema": schema}},
        }
    if route.socket:
        # OpenAPI has no words for them.
        told["x-headrace-websocket"] = {"firstMessage": {"$ref": f"#/components/schemas/{route.socket}"}}
    responses = told["responses"]
    for status, answer in route.answers.items():
        schema = {"$ref": f"#/components/schemas/{answer.schema}"} if answer.schema else {"type": "string"}
        # Of a stream of events OpenAPI 3.1 cannot say what each is like.
        told_as = {} if answer.media_type == "text/event-stream" else {"schema": schema}
        content = {} if status == 304 else {"content": {answer.media_type: told_as}}
        responses[str(status)] = {"description": answer.about, **content}
    for status in sorted({*ALWAYS, *route.problems}):
        if str(status) not in responses and not (route.action == PUBLIC and status == 401):
            schema = {"$ref": "#/components/schemas/Problem"}
            responses[str(status)] = {
                "description": http.HTTPStatus(status).phrase,
                "content": {MEDIA_TYPE: {"schema": schema}},
            }
    return told


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.where,
        "required": one.where == "path",
        "description": one.about,
        "schema": one.schema,
        **({"example": one.example} if one.example is not None else {}),
    }
