"""Remembers what a Java name refers to.

For each part of a name such as ``jvm.org.apache.spark.sql.functions.sum``, and on every access, py4j requests from the
JVM whether it is a package, a class or a method. To find out that ``org.apache`` is no class, the JVM searches all
jars. Such requests were a tenth of the JVM's CPU time in runs of many small flows. Names never change their meaning:
Headrace adds no classes to a JVM that runs.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

__all__ = ["remember_names"]


def remember_names(gateway: Any) -> None:
    """Call this when the connection to the JVM is open."""
    gateway.jvm.__class__ = _RememberingView


def _remembering(found: Any) -> Any:
    """Return the object. From now on, it requests each of its names once."""
    if isinstance(found, JavaPackage):
        found.__class__ = _RememberingPackage
    elif isinstance(found, JavaClass):
        found.__class__ = _RememberingClass
    return found


class _RememberingView(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        found = _remembering(super().__getattr__(name))
        if _is_constant(found, name):
            self.__dict__[name] = found
        return found


class _RememberingPackage(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        found = _remembering(super().__getattr__(name))
        if _is_constant(found, name):
            self.__dict__[name] = found
        return found


class _RememberingClass(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        found = _remembering(super().__getattr__(name))
        # A static field can get another value.
        if isinstance(found, (JavaMember, JavaClass)):
            self.__dict__[name] = found
        return found


def _is_constant(found: Any, name: str) -> bool:
    """Whether the name has its final meaning: py4j returns a package for a class whose jar is added later."""
    return isinstance(found, JavaClass) or (isinstance(found, JavaPackage) and name[:1].islower())
