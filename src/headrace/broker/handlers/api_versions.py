"""ApiVersions: which requests this broker understands.

A client sends this first, in the newest version it knows, before it can know what the broker knows. A
version that is too new is therefore answered in version 0 with an error and the range of this one API, and
the client asks again.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.api import Api, advertised
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle", "unsupported_version"]

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_SINCE = 3


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if request.version >= _SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(message.client_software_name)
        and _SOFTWARE.fullmatch(message.client_software_version)
    ):
        return m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _everything()


def unsupported_version() -> Any:
    """The answer to a version of ApiVersions that we do not have, to be sent in version 0."""
    return m.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(Api.API_VERSIONS)]
    )


@cache
def _everything() -> Any:
    # The table of handlers imports this module, so it can only be asked for once everything is imported.
    from headrace.broker.handlers import OFFERED

    return m.ApiVersionsResponse(api_keys=[_range(api) for api in sorted(OFFERED)])


def _range(api: Api) -> Any:
    first, last = advertised(api)
    return m.ApiVersionsResponse.ApiVersion(api_key=api, min_version=first, max_version=last)
