"""Queries of views and topics over HTTP: rows, records, and position tokens, with which a client reads its own
writes.
"""
