"""Decodes and encodes values and keys of topics in Spark expressions: the interface, and its JSON implementation."""
