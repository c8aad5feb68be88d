"""The handler of each API: a function that takes the broker and a request, and returns the response.

Each module has the handlers of related APIs, and its ``HANDLERS`` lists the permissions that each of them needs.
Produce and Fetch are not in ``HANDLERS``: their responses wait for the disk or for new records, so the connection
calls their ``begin`` itself.
"""

from __future__ import annotations

from headrace.broker.handlers import (
    cluster,
    configs,
    fetch,
    group_admin,
    group_membership,
    group_offsets,
    list_offsets,
    metadata,
    produce,
    topics,
    transaction_admin,
    transactions,
)
from headrace.broker.permissions import Handle, Permission
from headrace.wire.api import Api

__all__ = ["HANDLERS", "OFFERED", "PERMISSIONS"]

_HANDLERS = {
    **cluster.HANDLERS,
    **metadata.HANDLERS,
    **topics.HANDLERS,
    **configs.HANDLERS,
    **list_offsets.HANDLERS,
    **group_membership.HANDLERS,
    **group_admin.HANDLERS,
    **group_offsets.HANDLERS,
    **transactions.HANDLERS,
    **transaction_admin.HANDLERS,
}

HANDLERS: dict[Api, Handle] = {api: handler.handle for api, handler in _HANDLERS.items()}
PERMISSIONS: dict[Api, tuple[Permission, ...]] = {
    Api.PRODUCE: produce.PERMISSIONS,
    Api.FETCH: fetch.PERMISSIONS,
    **{api: handler.permissions for api, handler in _HANDLERS.items()},
}

SUPPORTED_APIS = frozenset(PERMISSIONS)
