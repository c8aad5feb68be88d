"""All supported messages of the protocol, by name: ``messages.HeartbeatRequest``.

Each class is built from its shape in ``shapes/`` on first use. ``message.py`` documents the classes.
"""

from __future__ import annotations

import re
from typing import Any

from headrace.wire.notation import Shape, load

__all__ = ["shape_of"]

_OTHERS = {
    "ConsumerProtocolAssignment": "consumer_protocol",
    "ConsumerProtocolSubscription": "consumer_protocol",
    "RequestHeader": "header",
    "ResponseHeader": "header",
}


def shape_of(name: str) -> Shape:
    """Return the shape of a message; raises ``KeyError`` if the name is unknown."""
    stem = _OTHERS.get(name)
    if stem is None:
        api_name = re.fullmatch(r"([A-Z]\w*)(?:Request|Response)", name, re.ASCII)
        if api_name is None:
            raise KeyError(name)
        stem = re.sub(r"(?<!^)(?=[A-Z])", "_", api_name[1]).lower()
    try:
        return load(stem).messages[name]
    except FileNotFoundError:
        raise KeyError(name) from None


def __getattr__(name: str) -> Any:
    try:
        shape = shape_of(name)
    except KeyError:
        raise AttributeError(
            f"unknown message {name!r}: it is not in the protocol, or has no file in shapes/"
        ) from None
    from headrace.wire.message import build

    cls = globals()[name] = build(shape)
    return cls
