"""The Delta Lake store. Each view is a Delta table."""
