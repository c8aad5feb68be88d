"""From a frame to a request that a handler can be given, or to the reason why there is none."""

from __future__ import annotations

from headrace.broker.handlers import OFFERED
from headrace.broker.limits import BrokerLimits
from headrace.broker.request import Request
from headrace.broker.weights import elements_max_of
from headrace.wire import WireError, decode, decode_header, messages, versions
from headrace.wire.api import Api
from headrace.wire.frames import Header

__all__ = ["read_request"]


def read_request(
    frame: bytes | bytearray, client_host: str, limits: BrokerLimits, connection: object | None = None
) -> tuple[Header, Request | None]:
    """``None`` for ApiVersions in a version that is not spoken here: that one is answered all the same.

    Anything else that cannot be read is a ``WireError``.
    """
    header = decode_header(frame)
    api = header.api
    if api is None or api not in OFFERED:
        raise WireError(f"there is no API {header.api_key} here")
    lowest, highest = versions(api)
    if not lowest <= header.version <= highest:
        if api is Api.API_VERSIONS:
            return header, None
        raise WireError(f"{api.name} is spoken in versions {lowest} to {highest}, not {header.version}")
    message = decode(
        getattr(messages, f"{api.title}Request"),
        header.version,
        frame,
        header.body_start,
        elements_max=elements_max_of(api, limits.request_elements_max),
    )
    return header, Request(
        api, header.version, header.correlation_id, header.client_id, message, client_host, connection
    )
