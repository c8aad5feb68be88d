"""Addresses of stores: looked up when they are used, shown without what is secret."""

from __future__ import annotations

import pytest

from headrace.model.address import AddressMissing, resolved, shown

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql://ann:s3cr3t@host:5432/shop", "postgresql://host:5432/shop"),
        ("postgresql://ann:p@s3cr3t/x@host/shop", "postgresql://host/shop"),
        ("postgresql://host/shop?user=ann&password=s3cr3t&sslmode=require", "postgresql://host/shop?user=...&password=...&sslmode=require"),
        ("host=db password=s3cr3t dbname=shop", "host=db password=... dbname=shop"),
        (r"host=db password = 'a s3cr3t\' s3cr3t' dbname=shop", "host=db password = ... dbname=shop"),
        ("redis://:s3cr3t@cache:6379/0", "redis://cache:6379/0"),
        ("$DATABASE_URL", "$DATABASE_URL"),
    ],
)  # fmt: skip
def test_an_address_is_shown_without_who_logs_in_and_how(address: str, seen: str) -> None:
    assert shown(address) == seen
    assert SECRET not in shown(address)


def test_a_variable_is_looked_up_when_it_is_needed() -> None:
    assert resolved("$SHOP_DB", {"SHOP_DB": "postgresql://host/shop"}) == "postgresql://host/shop"
    assert resolved("postgresql://host/$x", {}) == "postgresql://host/$x"
    with pytest.raises(AddressMissing, match="SHOP_DB is not set"):
        resolved("$SHOP_DB", {"SHOP_DB": ""})
