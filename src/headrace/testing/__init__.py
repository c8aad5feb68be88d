"""For tests of an app: derive a flow in batch, run a whole app in the test's process, wait for a value.

The fixtures are in ``headrace.testing.plugin``. docs/how-to/test-an-app.md shows how to use them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import BrokerThread as BrokerThread
    from headrace.testing.clock import DrivenClock as DrivenClock
    from headrace.testing.flow_tester import FlowTester as FlowTester
    from headrace.testing.local import local_settings as local_settings
    from headrace.testing.local import local_spark as local_spark
    from headrace.testing.records import DeadRecord as DeadRecord
    from headrace.testing.records import Deleted as Deleted
    from headrace.testing.records import DerivedRows as DerivedRows
    from headrace.testing.records import InvalidSample as InvalidSample
    from headrace.testing.records import LateRecord as LateRecord
    from headrace.testing.records import Reason as Reason
    from headrace.testing.running_app import RunningApp as RunningApp
    from headrace.testing.running_app import running as running
    from headrace.testing.wait import eventually as eventually

_MODULES = {
    "BrokerThread": "broker",
    "DrivenClock": "clock",
    "eventually": "wait",
    "FlowTester": "flow_tester",
    "local_settings": "local",
    "local_spark": "local",
    "DeadRecord": "records",
    "Deleted": "records",
    "DerivedRows": "records",
    "InvalidSample": "records",
    "LateRecord": "records",
    "Reason": "records",
    "RunningApp": "running_app",
    "running": "running_app",
}
__all__ = [
    "BrokerThread",
    "DeadRecord",
    "Deleted",
    "DerivedRows",
    "DrivenClock",
    "FlowTester",
    "InvalidSample",
    "LateRecord",
    "Reason",
    "RunningApp",
    "eventually",
    "local_settings",
    "local_spark",
    "running",
]


def __getattr__(name: str) -> Any:
    """Import on first use: a test of one flow needs no broker, and a test of the broker no Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
