"""Python code as one text: the bytecode of a function, and everything that it references.

The text includes constants, default values, closures, global variables, attributes of modules (``settings.RATE``,
``math.pi``), the contents of containers, partial functions, methods, and the user's classes and their objects. For a
user's module, it includes the attributes that the code reads. It includes all attributes if the module itself is used
as a value (``getattr(settings, name)``, a default, an argument). Functions and classes of installed packages are
included only by name, because the package is not part of the user's function.

An object is included by its pickled state, because Spark sends that state to its Python workers. Some objects have no
pickled state (an open file). Objects of an installed package can store their state elsewhere. In these cases the code
cannot be written as text, and ``HiddenState`` names the variable.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import hashlib
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.code_references import (
    OwnCode,
    Reference,
    attribute_of,
    attributes_read,
    closure_line,
    imported_module,
    is_exported,
    references,
)
from headrace.model.declarations import Flow, Topic
from headrace.model.errors import SourceLocation
from headrace.model.upcast import Upcaster

__all__ = ["CodePart", "HiddenState", "code_digest", "code_parts", "upcast_digest"]

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), range)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_SLOT_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
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
"""Attributes of a class that do not affect behaviour, or that repeat others (defaults are also in ``__init__``)."""

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
"""Functions that resolve names at run time, so that the code does not show what they read."""
_AGAIN = "again"
_UDFS = frozenset({"UserDefinedFunction", "UserDefinedTableFunction"})
_SPARK_CLASSES = _UDFS | {"Broadcast", "DataType", "Row"}


class HiddenState(Exception):
    """The value of ``variable`` cannot be written as text."""

    def __init__(self, variable: str, value: Any, location: SourceLocation) -> None:
        kind = type(value)
        super().__init__(f"{variable} is a {kind.__module__}.{kind.__qualname__}")
        self.variable = variable
        self.kind = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        self.location = location


@dataclass(frozen=True, slots=True)
class CodePart:
    """The text of one of the user's functions, or of a value that it reads."""

    text: str
    location: SourceLocation


def code_digest(function: Callable[..., Any], *, skip_hidden: bool = False) -> str:
    """With ``skip_hidden``, values that cannot be written as text are skipped. Otherwise they raise ``HiddenState``."""
    walk = _Walk(OwnCode.of(function), skip_hidden)
    walk.value(function)
    return "\n".join(text for _, text in walk.parts)


def code_parts(function: Callable[..., Any]) -> dict[str, CodePart]:
    """Return the parts of ``code_digest`` by name. The name of a function's own code is ``price``; the name of a value
    that it reads is ``price: RATE``. Values that cannot be written as text are skipped.
    """
    walk = _Walk(OwnCode.of(function), skip_hidden=True)
    walk.value(function)
    texts: dict[str, list[str]] = {}
    for name, text in walk.parts:
        # The number of a back reference depends on the functions before it.
        if not text.startswith(f"{_AGAIN} "):
            texts.setdefault(name, []).append(text)
    return {name: CodePart("\n".join(lines), walk.locations[name]) for name, lines in texts.items()}


@functools.lru_cache(maxsize=1_000)
def upcast_digest(upcast: Upcaster | None) -> str:
    """Return the digest of the upcasters' code; empty without upcasters. Raises ``HiddenState``."""
    if upcast is None:
        return ""
    return hashlib.sha256("\n".join(map(code_digest, upcast.functions)).encode()).hexdigest()[:16]


class _Walk:
    def __init__(self, own: OwnCode, skip_hidden: bool) -> None:
        self.parts: list[tuple[str, str]] = []
        """The name of the part, as in ``code_parts``, and a line of its text."""
        self.locations: dict[str, SourceLocation] = {}
        self._own = own
        self._skip_hidden = skip_hidden
        self._seen: dict[int, int] = {}
        self._visited: list[Any] = []
        """Keeps the visited objects alive, so that Python does not reuse their ids."""
        self._enclosing: set[int] = set()
        """The ids of the containers that contain the current value."""
        self._function_name = ""
        self._variable, self._location = "the function", SourceLocation("", 0)

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
        """Add a text with its length, so that different texts never have the same digest."""
        self.parts.append((self._part_name(), f"{kind} {len(text)} {text}"))

    def _part_name(self) -> str:
        function, variable = self._function_name, self._variable
        name = function if variable == function.rpartition(".")[2] else f"{function}: {variable}"
        self.locations.setdefault(name, self._location)
        return name

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)

    def _put_back_reference(self, value: Any) -> bool:
        """If the value was visited before, add its number instead of its text, and return True."""
        if id(value) in self._seen:
            self._put(_AGAIN, str(self._seen[id(value)]))
            return True
        self._seen[id(value)] = len(self._seen)
        self._visited.append(value)
        return False

    def _container(self, value: Any) -> None:
        if id(value) in self._enclosing:
            self._put("inside itself")
            return
        self._enclosing.add(id(value))
        self._put(type(value).__name__, str(len(value)))
        if isinstance(value, dict):
            for key, element in value.items():
                self.value(key)
                self.value(element)
        elif isinstance(value, (set, frozenset)):
            # The order of a set differs from process to process.
            self.parts += [(self._part_name(), text) for text in sorted(map(self._independent_text, value))]
        else:
            self._each(value)
        self._enclosing.discard(id(value))

    def _independent_text(self, value: Any) -> str:
        """Return the text of a value, independent of the values before it in its set."""
        walk = _Walk(self._own, self._skip_hidden)
        walk._seen, walk._enclosing = dict(self._seen), set(self._enclosing)
        walk._function_name = self._function_name
        walk._variable, walk._location = self._variable, self._location
        walk.value(value)
        self._visited += walk._visited
        return "\n".join(text for _, text in walk.parts)

    def _function(self, function: types.FunctionType) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        if not self._own.has_function(function):
            self._put_installed(name, function)
            if not is_exported(function) and not self._put_back_reference(function):
                self._closure(function)
            return
        if self._put_back_reference(function):
            return
        outer = self._function_name, self._variable, self._location
        self._function_name = function.__qualname__
        self._begin(function)
        self._put("function")
        self._code(function.__code__, function)
        self._begin(function)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        self._closure(function)
        self._begin(function)
        self._state({name: element for name, element in vars(function).items() if name != "__wrapped__"})
        self._function_name, self._variable, self._location = outer

    def _begin(self, function: types.FunctionType) -> None:
        """Assign what follows to the function itself, not to a value that it reads."""
        name = function.__qualname__.rpartition(".")[2]
        self._set_location(function, name, function.__code__.co_firstlineno)

    def _put_installed(self, name: str, referenced: Any) -> None:
        self._put("installed", name)
        if name in _DYNAMIC_LOOKUPS:
            self._reject_hidden(referenced)

    def _set_location(self, function: types.FunctionType, variable: str, line: int) -> None:
        self._variable, self._location = variable, SourceLocation(function.__code__.co_filename, line)

    def _closure(self, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                element = cell.cell_contents
            except ValueError:
                self._put("empty")
                continue
            self._set_location(function, name, closure_line(code, name))
            self._local_variable(code, name, element)

    def _code(self, code: types.CodeType, function: types.FunctionType) -> None:
        parameters = code.co_argcount + code.co_kwonlyargcount
        self._begin(function)
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
            if isinstance(constant, types.CodeType):
                self._code(constant, function)
            else:
                self._begin(function)
                self.value(constant)
        for reference in references(code):
            self._set_location(function, str(reference), reference.line)
            self._reference(reference, function, code)

    def _reference(self, reference: Reference, function: types.FunctionType, code: types.CodeType) -> None:
        if reference.is_import:
            referenced: Any = imported_module(reference, function)
            for name in reference.attributes:
                referenced = attribute_of(referenced, name)
            self._local_variable(code, reference.bound, referenced)
        elif reference.name in function.__globals__:
            self._put_resolved(function.__globals__[reference.name], reference.attributes)
        elif f"builtins.{reference.name}" in _DYNAMIC_LOOKUPS:
            self._reject_hidden(getattr(builtins, reference.name))
        # Otherwise the name is a builtin, or it does not exist and the call will raise an error.

    def _local_variable(self, code: types.CodeType, name: str, element: Any) -> None:
        """Add the value of a local variable or closure. For a module, add only the attributes that the code reads."""
        if not isinstance(element, types.ModuleType):
            self.value(element)
            return
        read = set(attributes_read(code, name)) if name else {()}
        for attributes in sorted(read):
            self._put_resolved(element, attributes)

    def _put_resolved(self, referenced: Any, attributes: Sequence[str]) -> None:
        """Add the value of ``referenced.a.b`` for the attributes a and b. Attributes of modules are resolved. For an
        attribute of another value, the whole value is added.
        """
        module, name, remaining = None, "", list(attributes)
        while isinstance(referenced, types.ModuleType) and remaining:
            module, name = referenced, remaining.pop(0)
            referenced = attribute_of(referenced, name)
        if module is not None and not self._own.has_module(module) and callable(referenced):
            self._put_installed(f"{module.__name__}.{name}", referenced)
        else:
            self.value(referenced)

    def _module(self, module: types.ModuleType) -> None:
        self._put("module", module.__name__)
        if self._own.has_module(module) and not self._put_back_reference(module):
            self._state(
                {name: element for name, element in vars(module).items() if not name.startswith("__")}
            )

    def _builtin(self, builtin: Any) -> None:
        self._put("builtin", builtin.__qualname__)
        if f"{getattr(builtin, '__module__', '')}.{builtin.__qualname__}" in _DYNAMIC_LOOKUPS:
            self._reject_hidden(builtin)
        element = getattr(builtin, "__self__", None)
        if not isinstance(element, (types.ModuleType, type)):
            self.value(element)

    def _class(self, class_: type) -> None:
        self._put("class", f"{class_.__module__}.{class_.__qualname__}")
        if not self._own.has_class(class_) or self._put_back_reference(class_):
            return
        self._each(class_.__bases__)
        self._state(
            {
                name: element
                for name, element in vars(class_).items()
                if name not in _NOT_BEHAVIOUR and not isinstance(element, _SLOT_DESCRIPTORS)
            }
        )

    def _state(self, state: dict[str, Any]) -> None:
        variable, location = self._variable, self._location
        for name in sorted(state):
            self._put("attribute", name)
            self._variable, self._location = f"{variable}.{name}", location
            self.value(state[name])
        self._variable, self._location = variable, location

    def _object(self, value: Any) -> None:
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        self._put("object", f"{kind.__module__}.{kind.__qualname__}")
        spark_class = _spark_class(kind)
        if isinstance(value, Flow):
            self.value(value.function)
        elif isinstance(value, Topic):
            self.value(value.name)
        elif spark_class == "DataType":
            self.value(value.json())
        elif spark_class == "Broadcast":
            self.value(value.value)
        elif isinstance(value, logging.Logger):
            self.value(value.name)
        elif package == "headrace" or (package == "pyspark" and spark_class != "Row"):
            pass  # Columns and DataFrames are part of the plan.
        elif isinstance(value, os._Environ) or not self._has_known_state(kind):
            self._reject_hidden(value)
        elif not self._put_back_reference(value):
            self._pickled(value)

    def _has_known_state(self, kind: type) -> bool:
        package = kind.__module__.partition(".")[0]
        return package in ("numpy", "pyspark", *sys.stdlib_module_names) or self._own.has_class(kind)

    def _pickled(self, value: Any) -> None:
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:
            self._reject_hidden(value)
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

    def _reject_hidden(self, value: Any) -> None:
        if not self._skip_hidden:
            raise HiddenState(self._variable, value, self._location)
        self._put("left out")


def _spark_class(kind: type) -> str:
    """Return the class of PySpark to which objects of ``kind`` belong; empty if this module does not distinguish it.
    Classes are compared by name, so that an app without flows does not import PySpark.
    """
    names = (base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "pyspark")
    return next((name for name in names if name in _SPARK_CLASSES), "")


def _is_udf(value: Any) -> bool:
    """Whether the value is a UDF, or the wrapper function that ``udf`` returns."""
    is_wrapper = isinstance(value, types.FunctionType) and {"func", "evalType"} <= vars(value).keys()
    return is_wrapper or _spark_class(type(value)) in _UDFS
