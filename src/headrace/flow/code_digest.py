"""Python code as one text: the instructions of a function, and all that they reach.

Constants count, default values, closures, global variables, attributes of modules (``settings.RATE``, ``math.pi``),
what is inside containers, partial functions, methods, the classes of the user and their objects. Of a module of the
user only the attributes count that the code reads; all of them where the module itself is a value
(``getattr(settings, name)``, a default, an argument). The functions and classes of installed packages count by their
names only: the package is not part of the user's function.

An object of a class counts by its state, as pickle would take it: that is what Spark sends to the processes that run
Python. Where there is none (an open file), or where it says little (an object of an installed package may keep it
somewhere else), the code has no text, and ``HiddenState`` names the variable.
"""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import functools
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.core.broadcast import Broadcast
from pyspark.sql.types import DataType, Row
from pyspark.sql.udf import UserDefinedFunction
from pyspark.sql.udtf import UserDefinedTableFunction

from headrace.flow.code_references import Reference, attributes_read, closure_line, references
from headrace.flow.own_code import OwnCode
from headrace.model.flow import Flow
from headrace.model.place import Place
from headrace.model.topic import Topic

__all__ = ["HiddenState", "code_digest"]

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), range)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_OF_A_SLOT = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NOT_BEHAVIOUR = frozenset(
    {
        "__abstractmethods__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
"""Of a class: where and how it was written, or said elsewhere, too (the default of a field is in ``__init__``)."""

_DYNAMIC_LOOKUPS = frozenset(
    {
        "builtins.__import__",
        "builtins.eval",
        "builtins.exec",
        "builtins.globals",
        "importlib.import_module",
        "os.getenv",
        "os.getenvb",
    }
)
"""These look up names at run time, so nothing in the code shows what they read."""


class HiddenState(Exception):
    """``variable`` holds something that has no text."""

    def __init__(self, variable: str, value: Any, place: Place) -> None:
        kind = type(value)
        super().__init__(f"{variable} is a {kind.__module__}.{kind.__qualname__}")
        self.variable = variable
        self.kind = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        self.place = place


def code_digest(function: Callable[..., Any], *, leave_out_hidden: bool = False) -> str:
    """``leave_out_hidden`` leaves out what has no text instead of raising ``HiddenState``."""
    walk = _Walk(OwnCode.of(function), leave_out_hidden)
    walk.value(function)
    return "\n".join(walk.parts)


class _Walk:
    def __init__(self, own: OwnCode, leave_out_hidden: bool) -> None:
        self.parts: list[str] = []
        self._own = own
        self._leave_out_hidden = leave_out_hidden
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        """What was seen stays alive, so that no other object can have its id."""
        self._open: set[int] = set()
        """Containers that the walk is inside of."""
        self._variable, self._place = "the function", Place("", 0)

    def value(self, value: Any) -> None:
        if type(value) in _CONSTANTS:
            self._put(type(value).__name__, repr(value))
        elif type(value) in _CONTAINERS:
            self._container(value)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif _is_udf(value):
            self._put("udf")
            self.value(value.func)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._put("method")
            self.value(value.__func__)
            self.value(value.__self__)
        elif isinstance(value, _BUILTINS):
            self._builtin(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self._put(type(value).__name__)
            self.value(value.__func__)
        elif isinstance(value, property):
            self._put("property")
            self._each((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self._put("cached_property")
            self.value(value.func)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._put("lru_cache")
            self.value(value.__wrapped__)
        elif isinstance(value, types.CodeType):
            self._put("code", value.co_code.hex())
        else:
            self._object(value)

    def _put(self, kind: str, text: str = "") -> None:
        """With its length, so that no text can be taken for two others."""
        self.parts.append(f"{kind} {len(text)} {text}")

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)

    def _is_repeated(self, value: Any) -> bool:
        if id(value) in self._seen:
            self._put("again", str(self._seen[id(value)]))
            return True
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return False

    def _container(self, value: Any) -> None:
        if id(value) in self._open:
            self._put("inside itself")
            return
        self._open.add(id(value))
        self._put(type(value).__name__, str(len(value)))
        if isinstance(value, dict):
            for key, held in value.items():
                self.value(key)
                self.value(held)
        elif isinstance(value, (set, frozenset)):
            # Their order changes from process to process.
            self.parts += sorted(map(self._alone, value))
        else:
            self._each(value)
        self._open.discard(id(value))

    def _alone(self, value: Any) -> str:
        """The text that it has wherever it stands among others."""
        walk = _Walk(self._own, self._leave_out_hidden)
        walk._seen, walk._open = dict(self._seen), set(self._open)
        walk._variable, walk._place = self._variable, self._place
        walk.value(value)
        self._kept += walk._kept
        return "\n".join(walk.parts)

    def _function(self, function: types.FunctionType) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        if not self._own.has_function(function):
            self._installed(name, function)
            if not _is_exported(function) and not self._is_repeated(function):
                self._closure(function)
            return
        if self._is_repeated(function):
            return
        self._put("function")
        self._code(function.__code__, function)
        self._at(function, function.__code__.co_name, function.__code__.co_firstlineno)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        self._closure(function)
        self._state({name: held for name, held in vars(function).items() if name != "__wrapped__"})

    def _installed(self, name: str, found: Any) -> None:
        self._put("installed", name)
        if name in _DYNAMIC_LOOKUPS:
            self._hidden(found)

    def _at(self, function: types.FunctionType, variable: str, line: int) -> None:
        self._variable, self._place = variable, Place(function.__code__.co_filename, line)

    def _closure(self, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:
                self._put("empty")
                continue
            self._at(function, name, closure_line(code, name))
            self._local_variable(code, name, held)

    def _code(self, code: types.CodeType, function: types.FunctionType) -> None:
        parameters = code.co_argcount + code.co_kwonlyargcount
        self._put("code", code.co_code.hex())
        self._put("handlers", code.co_exceptiontable.hex())
        self._put(
            "names",
            repr(
                (
                    code.co_names,
                    code.co_varnames[:parameters],
                    code.co_argcount,
                    code.co_posonlyargcount,
                    code.co_flags,
                )
            ),
        )
        for constant in code.co_consts:
            self._code(constant, function) if isinstance(constant, types.CodeType) else self.value(constant)
        for reference in references(code):
            self._at(function, str(reference), reference.line)
            self._reference(reference, function, code)

    def _reference(self, reference: Reference, function: types.FunctionType, code: types.CodeType) -> None:
        if reference.is_import:
            found: Any = _imported(reference, function)
            for name in reference.attributes:
                found = _attribute(found, name)
            self._local_variable(code, reference.bound, found)
        elif reference.name in function.__globals__:
            self._resolved(function.__globals__[reference.name], reference.attributes)
        elif f"builtins.{reference.name}" in _DYNAMIC_LOOKUPS:
            self._hidden(getattr(builtins, reference.name))
        # Else a builtin, or a mistake that shows when it is called.

    def _local_variable(self, code: types.CodeType, name: str, held: Any) -> None:
        """Digests the value of a local variable or closure; for a module, only the attributes that the code reads."""
        if not isinstance(held, types.ModuleType):
            self.value(held)
            return
        read = set(attributes_read(code, name)) if name else {()}
        for attributes in sorted(read):
            self._resolved(held, attributes)

    def _resolved(self, found: Any, attributes: Sequence[str]) -> None:
        """Digests ``found.a.b``. The attributes are resolved as long as they lead through modules."""
        inside, name, left = None, "", list(attributes)
        while isinstance(found, types.ModuleType) and left:
            inside, name = found, left.pop(0)
            found = _attribute(found, name)
        if inside is not None and not self._own.has_module(inside) and callable(found):
            self._installed(f"{inside.__name__}.{name}", found)
        else:
            self.value(found)

    def _module(self, module: types.ModuleType) -> None:
        self._put("module", module.__name__)
        if self._own.has_module(module) and not self._is_repeated(module):
            self._state({name: held for name, held in vars(module).items() if not name.startswith("__")})

    def _builtin(self, builtin: Any) -> None:
        self._put("builtin", builtin.__qualname__)
        if f"{getattr(builtin, '__module__', '')}.{builtin.__qualname__}" in _DYNAMIC_LOOKUPS:
            self._hidden(builtin)
        held = getattr(builtin, "__self__", None)
        if not isinstance(held, (types.ModuleType, type)):
            self.value(held)

    def _class(self, found: type) -> None:
        self._put("class", f"{found.__module__}.{found.__qualname__}")
        if not self._own.has_class(found) or self._is_repeated(found):
            return
        self._each(found.__bases__)
        self._state(
            {
                name: held
                for name, held in vars(found).items()
                if name not in _NOT_BEHAVIOUR and not isinstance(held, _OF_A_SLOT)
            }
        )

    def _state(self, state: dict[str, Any]) -> None:
        variable, place = self._variable, self._place
        for name in sorted(state):
            self._put("attribute", name)
            self._variable, self._place = f"{variable}.{name}", place
            self.value(state[name])
        self._variable, self._place = variable, place

    def _object(self, value: Any) -> None:
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        self._put("object", f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, Flow):
            self.value(value.function)
        elif isinstance(value, Topic):
            self.value(value.name)
        elif isinstance(value, DataType):
            self.value(value.json())
        elif isinstance(value, Broadcast):
            self.value(value.value)
        elif isinstance(value, logging.Logger):
            self.value(value.name)
        elif package == "headrace" or (package == "pyspark" and not isinstance(value, Row)):
            pass  # What columns and frames do is in the plan.
        elif isinstance(value, os._Environ) or not self._is_open(kind):
            self._hidden(value)
        elif not self._is_repeated(value):
            self._pickled(value)

    def _is_open(self, kind: type) -> bool:
        package = kind.__module__.partition(".")[0]
        return package in ("numpy", "pyspark", *sys.stdlib_module_names) or self._own.has_class(kind)

    def _pickled(self, value: Any) -> None:
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:
            self._hidden(value)
            return
        if isinstance(reduced, str):
            self._put("name", reduced)
            return
        build, arguments, state, items, pairs = [*reduced, None, None, None][:5]
        self.value(build)
        self._each(arguments)
        if type(state) is dict and all(type(name) is str for name in state):
            self._state(state)
        else:
            self.value(state)
        self._each(items or ())
        self._each(pairs or ())

    def _hidden(self, value: Any) -> None:
        if not self._leave_out_hidden:
            raise HiddenState(self._variable, value, self._place)
        self._put("left out")


def _attribute(found: Any, name: str) -> Any:
    """Imports a submodule that is not loaded yet."""
    if isinstance(found, types.ModuleType) and not hasattr(found, name) and hasattr(found, "__path__"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{found.__name__}.{name}")
    return getattr(found, name, None)


def _is_udf(value: Any) -> bool:
    """Also the function that ``udf`` returns, which is a wrapper."""
    if isinstance(value, (UserDefinedFunction, UserDefinedTableFunction)):
        return True
    return isinstance(value, types.FunctionType) and {"func", "evalType"} <= vars(value).keys()


def _is_exported(function: types.FunctionType) -> bool:
    """Whether its name leads to it, so that it is a function of the package and not one that the package has made."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _imported(reference: Reference, function: types.FunctionType) -> types.ModuleType | None:
    name = "." * reference.level + reference.name
    try:
        if reference.level:
            name = importlib.util.resolve_name(name, str(function.__globals__.get("__package__") or ""))
        return importlib.import_module(name)
    except ImportError:
        return None
