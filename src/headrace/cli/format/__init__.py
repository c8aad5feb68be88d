"""Percent formats like those of rpk: ``consume -f '%k %v\\n'`` prints records, ``produce -f`` parses them.

``template`` splits a format into literals and fields. ``modifiers`` prints and parses single values. ``printer`` turns
records into bytes, and ``reader`` parses records from a ``source`` of bytes. This package accesses no files or brokers.
"""
