"""Writes records to the log over HTTP. With an Idempotency-Key, repeating a request does not write its records
twice.
"""
