"""The error codes are those that the Kafka client's own class lists."""

from __future__ import annotations

import struct

from headrace.wire import ErrorCode

from .jar import member


def constants(data: bytes) -> tuple[list[object], int]:
    """The constant pool of a class file (texts, and references to texts as numbers), and the position of its end."""
    (count,) = struct.unpack_from(">H", data, 8)
    found: list[object] = [None]
    pos = 10
    while len(found) < count:
        kind = data[pos]
        if kind == 1:
            (size,) = struct.unpack_from(">H", data, pos + 1)
            found.append(data[pos + 3 : pos + 3 + size].decode("utf-8", "replace"))
            pos += 3 + size
        elif kind in (5, 6):
            found += [None, None]
            pos += 9
        elif kind == 8:
            found.append(struct.unpack_from(">H", data, pos + 1)[0])
            pos += 3
        else:
            found.append(None)
            pos += {7: 3, 16: 3, 19: 3, 20: 3, 15: 4}.get(kind, 5)
    return found, pos


def initializer(data: bytes) -> bytes:
    """The bytecode that creates the constants of the enum."""
    texts, pos = constants(data)
    (interfaces,) = struct.unpack_from(">H", data, pos + 6)
    pos += 8 + 2 * interfaces
    for _ in ("fields", "methods"):
        (count,) = struct.unpack_from(">H", data, pos)
        pos += 2
        for _ in range(count):
            _, name, _, attributes = struct.unpack_from(">HHHH", data, pos)
            pos += 8
            for _ in range(attributes):
                attribute, size = struct.unpack_from(">HI", data, pos)
                if texts[name] == "<clinit>" and texts[attribute] == "Code":
                    (length,) = struct.unpack_from(">I", data, pos + 10)
                    return data[pos + 14 : pos + 14 + length]
                pos += 6 + size
    raise AssertionError("the class has no initializer")


def listed_codes() -> dict[str, int]:
    """Interpret the bytecode of each constant: new, dup, then push its name, ordinal, code and text."""
    data = member("org/apache/kafka/common/protocol/Errors.class")
    texts, _ = constants(data)
    code = initializer(data)
    found: dict[str, int] = {}
    pushed: list[str | int] = []
    pos = 0
    while pos < len(code):
        op = code[pos]
        size = 1
        if op == 0xBB:  # new: another constant begins
            pushed, size = [], 3
        elif 0x02 <= op <= 0x08:  # iconst
            pushed.append(op - 3)
        elif op == 0x10:  # bipush
            pushed.append(struct.unpack_from(">b", code, pos + 1)[0])
            size = 2
        elif op == 0x11:  # sipush
            pushed.append(struct.unpack_from(">h", code, pos + 1)[0])
            size = 3
        elif op in (0x12, 0x13):  # ldc, ldc_w
            size = 2 if op == 0x12 else 3
            index = texts[int.from_bytes(code[pos + 1 : pos + size], "big")]
            assert isinstance(index, int)
            pushed.append(str(texts[index]))
        elif op == 0xBA:  # invokedynamic
            size = 5
        elif op in (0xB2, 0xB3, 0xB7, 0xB8):  # getstatic, putstatic, invokespecial, invokestatic
            if op == 0xB3 and len(pushed) >= 3:
                name, ordinal, number = pushed[:3]
                assert isinstance(name, str)
                assert ordinal == len(found)
                assert isinstance(number, int)
                found[name] = number
            size = 3
            if op == 0xB8:  # $values(): all constants are created
                return found
        else:
            assert op in (0x01, 0x59), f"opcode {op:#x} at {pos}"  # aconst_null, dup
        pos += size
    return found


def test_error_codes_are_those_of_the_kafka_client() -> None:
    assert {code.name: int(code) for code in ErrorCode} == listed_codes()
