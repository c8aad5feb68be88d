"""A new release of Spark affects few files: only one package uses its private JVM classes, and one uses its plans."""

from __future__ import annotations

import ast
import re

from .source_tree import Module, modules
from .tracked import short, text_of, tracked_files

# Attributes of PySpark's objects that lead to objects of the JVM.
JVM_ATTRIBUTES = {"_jvm", "_jdf", "_jsc", "_jsq", "_jc", "_jo", "_jsparkSession", "_jsession", "_gateway"}
# Methods of Spark's nodes and expressions by which a plan is read or rewritten.
PLAN_METHODS = {
    *(
        "analyzed",
        "children",
        "withNewChildren",
        "productIterator",
        "exprId",
        "semanticEquals",
        "sameSemantics",
    ),
    *("projectList", "groupingExpressions", "aggregateExpressions", "windowExpressions", "generatorOutput"),
    *("joinType", "outputSet", "containsPattern", "isStreaming", "foldable", "prettyName", "ofRows"),
}
SPARK, COMPILE = "headrace.flow.spark.", "headrace.flow.compile."


def _attributes(module: Module) -> set[str]:
    return {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}


def _methods(module: Module) -> set[str]:
    calls = (node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}


def _package_modules() -> list[Module]:
    return [module for name, module in modules().items() if name.startswith("headrace.")]


def test_only_the_packages_spark_and_compile_use_objects_of_the_jvm() -> None:
    users = {
        module.name: used for module in _package_modules() if (used := _attributes(module) & JVM_ATTRIBUTES)
    }
    assert any(name.startswith(SPARK) for name in users)
    assert {name: used for name, used in users.items() if not name.startswith((SPARK, COMPILE))} == {}


def test_only_the_package_compile_walks_plans() -> None:
    users = {module.name: used for module in _package_modules() if (used := _methods(module) & PLAN_METHODS)}
    assert any(name.startswith(COMPILE) for name in users)
    assert {name: used for name, used in users.items() if not name.startswith(COMPILE)} == {}


def test_tests_and_faults_change_the_shared_session_only_with_session_conf() -> None:
    """A configuration that a test does not restore affects every later test of the process."""
    changed = [
        short(path)
        for path in tracked_files()
        if path.suffix == ".py"
        and short(path).startswith(("tests/", "faults/"))
        and re.search(r"\bconf\.(?:un)?set\(", text_of(path) or "")
    ]
    assert changed == ["faults/servers/spark.py"]
