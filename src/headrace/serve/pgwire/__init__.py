"""PostgreSQL's protocol, for reading: what speaks to PostgreSQL can ask the views."""
