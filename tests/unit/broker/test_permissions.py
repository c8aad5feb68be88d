"""Every handler declares the permissions that its API needs."""

from __future__ import annotations

import pytest

from headrace.broker.handlers import PERMISSIONS, SUPPORTED_APIS
from headrace.broker.permissions import Operation, Permission, Resource
from headrace.wire.api import Api

NEEDS_NOTHING = {Api.API_VERSIONS}


@pytest.mark.parametrize("api", sorted(SUPPORTED_APIS))
def test_a_handler_declares_its_permissions(api: Api) -> None:
    permissions = PERMISSIONS[api]
    assert all(isinstance(permission, Permission) for permission in permissions)
    assert bool(permissions) is (api not in NEEDS_NOTHING)


def test_an_api_that_changes_something_needs_more_than_describe() -> None:
    reading = {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ}
    changing = {
        api
        for api in SUPPORTED_APIS
        if any(permission.operation not in reading for permission in PERMISSIONS[api])
    }
    prefixes = (
        "CREATE",
        "DELETE",
        "ALTER",
        "INCREMENTAL_ALTER",
        "ADD",
        "END",
        "INIT",
        "PRODUCE",
        "TXN",
        "OFFSET_DELETE",
    )
    assert changing == {api for api in SUPPORTED_APIS if api.name.startswith((*prefixes, "METADATA"))}


def test_produce_needs_write_on_topics_and_transactional_ids() -> None:
    permissions = PERMISSIONS[Api.PRODUCE]
    assert Permission(Operation.WRITE, Resource.TOPIC) in permissions
    assert Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID) in permissions
