"""A row of the route table: what is dispatched by, what is documented from, and what tests list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.serve.parameter import Parameter
from headrace.serve.scope import ACTIONS, PUBLIC, READ_VIEW
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["JSON", "Answer", "Body", "Call", "Route", "Told", "json_answer"]

JSON = "application/json"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as it was understood."""

    served: Served
    caller: Caller
    route: Route
    url_path: str
    names: Mapping[str, str]
    """What the path has in the place of ``{names}``."""
    asked: Mapping[str, Any]
    """Parameters, each of the type that the route says; what was not given has its default or is not there."""
    headers: Mapping[str, str]
    began: float
    """By the steady clock."""
    body: bytes = b""
    request_id: str = ""
    failed: Callable[[BaseException], None] = lambda error: None
    """Takes what goes wrong once the answer has begun."""


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[Receive], AsyncGenerator[bytes]] | None = None
    """Of an answer that goes on, what comes in the place of the body; given how the caller's going is heard."""


def json_answer(told: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(msgspec.json.encode(told), status, headers=headers or {})


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, for the documentation."""

    about: str
    schema: str = ""
    """One of ``headrace.serve.schemas``."""
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Body:
    schema: str
    about: str


@dataclass(frozen=True, slots=True)
class Route:
    method: Literal["GET", "POST"]
    path: str
    """As Starlette writes them: ``/v1/views/{view}``, and ``{key:path}`` for what may hold slashes."""
    action: str
    """Of ``headrace.serve.scope``; PUBLIC where no token is needed."""
    handle: Callable[[Call], Awaitable[Answer]]
    summary: str
    about: str = ""
    named: str = ""
    """Which name of the path the scope is about."""
    listed: bool = False
    """Whether any token will do, since the answer has only what the token may see."""
    any_name: bool = False
    """Whether the scope for some name will do, since the request says by other means what it is about."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Mapping[int, Told] = field(default_factory=dict)
    problems: tuple[int, ...] = ()
    """Besides those that every route may answer with."""
    socket: str = ""
    """Where the same address takes a WebSocket: the shape of its first message, one of ``headrace.serve.schemas``."""

    def __post_init__(self) -> None:
        """A route without a scope cannot be made: what is asked for by name is allowed by name."""
        where = f"{self.method} {self.path}"
        if self.action != PUBLIC and self.action not in ACTIONS:
            raise ValueError(f"{where}: {self.action!r} is no action of headrace.serve.scope")
        if self.named and f"{{{self.named}}}" not in self.path:
            raise ValueError(f"{where} has no {{{self.named}}} that its scope could be about")
        needs_name = self.action != PUBLIC and ACTIONS[self.action] and not (self.listed or self.any_name)
        if needs_name != bool(self.named):
            raise ValueError(f"{where}: {self.action!r} {'needs a' if needs_name else 'has no'} name")
        if self.socket and (self.method, self.action, self.named) != ("GET", READ_VIEW, "view"):
            raise ValueError(f"{where}: a WebSocket follows a view, by its name, with {READ_VIEW!r}")
