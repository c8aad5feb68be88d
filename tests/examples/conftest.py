"""One broker and one Spark for the examples."""

from tests.support.flows import flow_world

__all__ = ["flow_world"]
