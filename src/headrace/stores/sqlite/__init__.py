"""The SQLite store. Each view is a table in a file."""
