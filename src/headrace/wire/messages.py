"""Every message of the protocol that we speak, by its name in the protocol: ``messages.HeartbeatRequest``.

A class is built when it is first asked for, from the shapes in ``shapes/``; ``message.py`` says what it
looks like.
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
    """The shape of a message; KeyError if there is none of that name."""
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
        raise AttributeError(f"the protocol has no message {name!r}, or we have no shape of it") from None
    from headrace.wire.message import build

    cls = globals()[name] = build(shape)
    return cls
