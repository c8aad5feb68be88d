"""The PostgreSQL store. Each view is a table in a schema of a database."""
