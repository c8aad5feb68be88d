"""Headrace: the database turned inside out."""
