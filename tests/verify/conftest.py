"""One broker and one Spark for all tests of verification."""

from tests.support.flows import flow_world

__all__ = ["flow_world"]
