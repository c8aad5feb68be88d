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
_ALL_FEATURES_SINCE = 4
_FEATURES = {"transaction.version": 2}


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if request.version >= _SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(message.client_software_name)
        and _SOFTWARE.fullmatch(message.client_software_version)
    ):
        return m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _everything(shows_all=request.version >= _ALL_FEATURES_SINCE)


def unsupported_version() -> Any:
    """The answer to a version of ApiVersions that we do not have, to be sent in version 0."""
    return m.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(Api.API_VERSIONS)]
    )


@cache
def _everything(*, shows_all: bool) -> Any:
    # The table of handlers imports this module, so it can only be asked for once everything is imported.
    from headrace.broker.handlers import OFFERED

    # Clients turn the second protocol of transactions on where it is finalized (KIP-890). Those of version 3 do not
    # understand that a feature may be supported from 0 on.
    supported = m.ApiVersionsResponse.SupportedFeatureKey
    finalized = m.ApiVersionsResponse.FinalizedFeatureKey
    return m.ApiVersionsResponse(
        api_keys=[_range(api) for api in sorted(OFFERED)],
        supported_features=[
            supported(name=name, min_version=0, max_version=level)
            for name, level in _FEATURES.items()
            if shows_all
        ],
        finalized_features_epoch=0,
        finalized_features=[
            finalized(name=name, min_version_level=level, max_version_level=level)
            for name, level in _FEATURES.items()
        ],
    )


def _range(api: Api) -> Any:
    first, last = advertised(api)
    return m.ApiVersionsResponse.ApiVersion(api_key=api, min_version=first, max_version=last)
