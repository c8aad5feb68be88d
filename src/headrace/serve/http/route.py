"""Routes, the request and response of a handler, and the base class of all features.

A ``Route`` is data: the dispatcher matches requests with it, the OpenAPI document is generated from it, and tests
enumerate all routes. Each route declares the permission that it needs. A ``Route`` without a permission cannot be
constructed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec

from headrace.broker.metrics.exposition import Exposition
from headrace.serve.errors import InvalidRequest
from headrace.serve.http.tokens import PERMISSIONS, PUBLIC, READ_VIEW, Caller

__all__ = [
    "EVENT_STREAM",
    "JSON",
    "Body",
    "Feature",
    "MetricsWriter",
    "Parameter",
    "Request",
    "Response",
    "ResponseDoc",
    "Route",
    "boolean",
    "duration",
    "enum",
    "event_stream",
    "integer",
    "json_response",
    "text",
    "wait_for_disconnect",
]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_INTEGER = re.compile(r"-?[0-9]{1,19}")

ParameterLocation = Literal["query", "path", "header"]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
MetricsWriter = Callable[[Exposition], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose route, caller and parameters are checked."""

    caller: Caller
    route: Route
    path: str
    path_values: Mapping[str, str]
    """The values of the path's ``{names}``."""
    parameters: Mapping[str, Any]
    """Query parameters, parsed by their types. A parameter that the request omits has no entry."""
    headers: Mapping[str, str]
    started_s: float
    """When the request started, on the steady clock."""
    body: bytes = b""
    request_id: str = ""
    report_failure: Callable[[BaseException], None] = lambda error: None
    """Call it with an error that occurs after the response has started."""


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[Receive], AsyncGenerator[bytes]] | None = None
    """Yields the body of a streaming response. It awaits ``Receive`` to detect that the client disconnects."""


def event_stream(
    stream: Callable[[Receive], AsyncGenerator[bytes]], headers: Mapping[str, str] | None = None
) -> Response:
    """A response of server-sent events, with a header that forbids proxies to buffer it."""
    headers = {"X-Accel-Buffering": "no", **(headers or {})}
    return Response(b"", media_type=EVENT_STREAM, headers=headers, stream=stream)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def json_response(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers=headers or {})


@dataclass(frozen=True, slots=True)
class ResponseDoc:
    """The documentation of one response."""

    description: str
    schema: type[msgspec.Struct] | None = None
    """The Struct that the handler returns."""
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Body:
    """The documentation of a request body."""

    schema: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...]
    """The Struct of the body, or several Structs if the body can be any of them."""
    description: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header, with its parser and its JSON schema."""

    name: str
    description: str
    schema: dict[str, Any]
    parse: Callable[[str], Any]
    """Parses the raw text. On failure it raises ValueError, whose text completes the sentence "NAME must be …"."""
    where: ParameterLocation = "query"
    example: Any = None

    def value(self, raw: str) -> Any:
        try:
            return self.parse(raw)
        except ValueError as error:
            raise InvalidRequest(f"{self.name} must be {error}") from None


@dataclass(frozen=True, slots=True)
class Route:
    method: Literal["GET", "POST"]
    path: str
    """The path in Starlette's notation, such as ``/v1/views/{view}``. ``{key:path}`` can contain slashes."""
    permission: str
    """A permission of ``headrace.serve.http.tokens``; PUBLIC if the route needs no token."""
    handle: Callable[..., Awaitable[Response]]
    """A method of a feature. Its argument is the ``Request``."""
    summary: str
    description: str = ""
    permission_name: str = ""
    """The ``{name}`` of the path that the token's scope must allow."""
    is_filtered: bool = False
    """If true, any token may call the route, and the handler returns only what the token may read."""
    any_name: bool = False
    """If true, a scope for any name is enough here. The body names the resource, and the handler checks that name."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    responses: Mapping[int, ResponseDoc] = field(default_factory=dict)
    error_statuses: tuple[int, ...] = ()
    """Error statuses of this route, in addition to ``openapi.ALWAYS``."""
    operation_id: str = ""
    """The ``operationId`` in the OpenAPI document. The default is the handler's name."""
    websocket: type[msgspec.Struct] | None = None
    """The Struct of the first message, if the path also accepts a WebSocket."""

    def __post_init__(self) -> None:
        where = f"{self.method} {self.path}"
        if self.permission != PUBLIC and self.permission not in PERMISSIONS:
            raise ValueError(
                f"{where}: {self.permission!r} is not a permission of headrace.serve.http.tokens"
            )
        if self.permission_name and f"{{{self.permission_name}}}" not in self.path:
            raise ValueError(f"{where}: permission_name {self.permission_name!r} is not in the path")
        needs_name = (
            self.permission != PUBLIC
            and PERMISSIONS[self.permission]
            and not (self.is_filtered or self.any_name)
        )
        if needs_name != bool(self.permission_name):
            raise ValueError(
                f"{where}: permission {self.permission!r} {'needs a' if needs_name else 'must have no'} permission_name"
            )
        if self.websocket and (self.method, self.permission, self.permission_name) != (
            "GET",
            READ_VIEW,
            "view",
        ):
            raise ValueError(
                f"{where}: a WebSocket route must be a GET route with the permission {READ_VIEW!r} for {{view}}"
            )


class Feature:
    """A part of the server: a set of routes with their handlers as methods, and its background work.

    ``headrace.serve.features`` constructs all features in the server's event loop.
    """

    routes: ClassVar[tuple[Route, ...]] = ()

    def start(self) -> None: ...

    def drain(self) -> None:
        """Answer all waiting requests immediately, and start no more long operations.

        ``context.draining`` is already true.
        """

    async def close(self) -> None: ...

    def write_metrics(self, out: Exposition) -> None: ...


def text(
    name: str,
    description: str,
    *,
    chars_max: int = 4_000,
    where: ParameterLocation = "query",
    example: str | None = None,
) -> Parameter:
    def parse(raw: str) -> str:
        if len(raw) > chars_max:
            raise ValueError(f"a text of at most {chars_max} characters")
        return raw

    return Parameter(name, description, {"type": "string", "maxLength": chars_max}, parse, where, example)


def integer(name: str, description: str, minimum: int, maximum: int, default: int | None = None) -> Parameter:
    def parse(raw: str) -> int:
        if _INTEGER.fullmatch(raw) is None or not minimum <= int(raw) <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(raw)

    schema: dict[str, Any] = {"type": "integer", "minimum": minimum, "maximum": maximum}
    if default is not None:
        schema["default"] = default
    return Parameter(name, description, schema, parse)


def boolean(name: str, description: str) -> Parameter:
    def parse(raw: str) -> bool:
        if raw not in ("true", "false"):
            raise ValueError("either true or false")
        return raw == "true"

    return Parameter(name, description, {"type": "boolean", "default": False}, parse)


def enum(name: str, description: str, values: tuple[str, ...]) -> Parameter:
    def parse(raw: str) -> str:
        if raw not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return raw

    return Parameter(name, description, {"type": "string", "enum": list(values)}, parse)


def duration(name: str, description: str) -> Parameter:
    """A duration such as ``2s``, ``500ms`` or ``1m``. The parsed value is in seconds."""

    def parse(raw: str) -> float:
        match = _DURATION.fullmatch(raw)
        if match is None:
            raise ValueError("a duration such as 2s, 500ms or 1m")
        return float(match[1]) * _UNITS[match[2]]

    schema = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}
    return Parameter(name, description, schema, parse, example="2s")
