"""Encodes values and keys as bytes and decodes them, with a fast and a strict decoder. The format today is JSON."""
