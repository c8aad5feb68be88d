from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import suppress

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import InvalidRecords, RecordError, RecordsTooLarge, UnknownCodec
from headrace.records.codecs import pack, unpack

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
PACKED = [GZIP, SNAPPY, LZ4, ZSTD]
MIB = 1024 * 1024
TEXT = b"the quick brown fox jumps over the lazy dog, " * 3000

blocks = st.lists(
    st.binary(max_size=200) | st.builds(lambda b, n: b * n, st.binary(max_size=9), st.integers(0, 9000))
)
some_bytes = blocks.map(b"".join)


def unpacked(codec, data, limit=16 * MIB):
    buffer, size = unpack(codec, data, limit)
    return bytes(buffer[:size])


@given(some_bytes, st.sampled_from(PACKED))
def test_compressed_data_decompresses(data, codec):
    assert unpacked(codec, pack(codec, data)) == data
    assert unpacked(codec, memoryview(pack(codec, memoryview(data)))) == data


@given(some_bytes.filter(bool))
def test_other_libraries_and_headrace_decompress_each_others_data(data):
    assert gzip.decompress(pack(GZIP, data)) == data
    assert aiokafka.codec.snappy_decode(pack(SNAPPY, data)) == data
    assert aiokafka.codec.lz4_decode(pack(LZ4, data)) == data
    assert aiokafka.codec.zstd_decode(pack(ZSTD, data)) == data
    assert unpacked(GZIP, gzip.compress(data)) == data
    assert unpacked(SNAPPY, aiokafka.codec.snappy_encode(data)) == data
    assert unpacked(SNAPPY, aiokafka.codec.snappy_encode(data, xerial_compatible=False)) == data
    assert unpacked(LZ4, aiokafka.codec.lz4_encode(data)) == data
    assert unpacked(ZSTD, aiokafka.codec.zstd_encode(data)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_exact(codec):
    data = pack(codec, TEXT)
    assert unpacked(codec, data, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 1000, 1, 0):
        with pytest.raises(RecordsTooLarge, match=f"more than {limit}"):
            unpack(codec, data, limit)


@pytest.mark.parametrize("codec", PACKED)
def test_truncated_or_extended_data_is_invalid(codec):
    data = pack(codec, TEXT)
    for wrong in (b"", data[:3], data[: len(data) // 2], data[:-1], data + b"more"):
        with pytest.raises(InvalidRecords):
            unpack(codec, wrong, MIB)


@given(st.sampled_from(PACKED), st.data())
def test_damaged_data_raises_only_record_errors(codec, data):
    packed = bytearray(pack(codec, TEXT[: data.draw(st.sampled_from([50, 5000]))]))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordError):
        assert len(unpacked(codec, packed, MIB)) <= MIB


@given(st.sampled_from(PACKED), st.binary(max_size=60))
def test_random_data_raises_only_record_errors(codec, junk):
    with suppress(RecordError):
        assert len(unpacked(codec, junk, MIB)) <= MIB


def test_codecs_outside_the_format_are_unknown():
    for codec in (0, 5, 7):
        with pytest.raises(UnknownCodec):
            unpack(codec, b"", MIB)
    with pytest.raises(UnknownCodec):
        pack(5, b"")


def test_a_full_output_buffer_raises_the_expected_error():
    for name in ("gzip", "lz4", "zstd"):
        codec = getattr(cramjam, name)
        with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
            codec.decompress_into(codec.compress(TEXT), bytearray(len(TEXT) - 1))


def test_concatenated_gzip_members_are_decompressed_and_a_wrong_size_is_refused():
    assert unpacked(GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    raw = zlib.compressobj(wbits=-15)
    body = raw.compress(TEXT) + raw.flush()
    header = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    for stated in (len(TEXT), 5, 2**32 - 1):
        member = header + body + struct.pack("<II", zlib.crc32(TEXT), stated)
        if stated == len(TEXT):
            assert unpacked(GZIP, member) == TEXT
        else:
            with pytest.raises(InvalidRecords):
                unpack(GZIP, member, MIB)


def test_concatenated_zstd_frames_are_decompressed():
    assert unpacked(ZSTD, pack(ZSTD, b"one ") + pack(ZSTD, TEXT) + pack(ZSTD, b"")) == b"one " + TEXT


def lz4(data, **options):
    compressor = cramjam.lz4.Compressor(**options)
    compressor.compress(data)
    return bytes(compressor.finish())


def test_lz4_frames_that_java_cannot_read_are_refused():
    with pytest.raises(InvalidRecords, match="depend on each other"):
        unpack(LZ4, lz4(TEXT, block_linked=True), MIB)
    frame = lz4(TEXT, block_linked=False)
    assert unpacked(LZ4, frame) == TEXT
    assert unpacked(LZ4, lz4(TEXT, block_linked=False, content_checksum=True)) == TEXT
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    for wrong in (frame + frame, skippable + frame, frame + skippable):
        assert bytes(cramjam.lz4.decompress(wrong)).startswith(TEXT), "the library itself accepts the frame"
        with pytest.raises(InvalidRecords):
            unpack(LZ4, wrong, MIB)


def test_our_lz4_frames_have_independent_blocks():
    assert pack(LZ4, TEXT)[4] & 0b0010_0000


@pytest.mark.parametrize("stated", [2**32 - 1, 2**31, 300_000_000, 200])
def test_snappy_data_that_declares_an_impossible_size_is_refused(stated):
    block = bytearray()
    rest = stated
    while rest >= 0x80:
        block.append(rest & 0x7F | 0x80)
        rest >>= 7
    block.append(rest)
    block += b"\x00a"
    with pytest.raises((InvalidRecords, RecordsTooLarge)):
        unpack(SNAPPY, block, 2**40)
    with pytest.raises((InvalidRecords, RecordsTooLarge)):
        unpack(SNAPPY, xerial(bytes(block)), 2**40)


def xerial(*snappy_blocks):
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return out + b"".join(struct.pack(">i", len(block)) + block for block in snappy_blocks)


def test_concatenated_xerial_snappy_blocks_are_decompressed():
    first, second = (bytes(cramjam.snappy.compress_raw(part)) for part in (b"one ", TEXT))
    assert unpacked(SNAPPY, xerial(first, second)) == b"one " + TEXT
    assert unpacked(SNAPPY, xerial()) == b""
    with pytest.raises(RecordsTooLarge):
        unpack(SNAPPY, xerial(first, second), len(TEXT) + 3)
    for size in (-1, 0, len(first) + 1, 2**31 - 1):
        with pytest.raises(InvalidRecords, match=str(size)):
            unpack(SNAPPY, xerial() + struct.pack(">i", size) + first, MIB)
    with pytest.raises(InvalidRecords, match="shorter than its length field"):
        unpack(SNAPPY, xerial(first) + b"\x00\x00", MIB)
