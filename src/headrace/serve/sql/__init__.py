"""Read-only SQL over the views of an app, in any store. Served over HTTP and over PostgreSQL's protocol (``wire/``)."""
