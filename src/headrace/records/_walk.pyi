from typing import TypeVar

from headrace.checksum import Buffer

_Tuple = TypeVar("_Tuple", bound=tuple[object, ...])

def walk(buffer: Buffer, start: int, count: int, headers_max: int, /) -> tuple[int, int, int, int, bool]: ...
def read(
    buffer: Buffer, start: int, count: int, bytes_max: int, kind: type[_Tuple], /
) -> tuple[list[_Tuple], int]: ...
