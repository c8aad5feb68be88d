"""PostgreSQL's wire protocol, for read-only SQL over the views of an app."""
