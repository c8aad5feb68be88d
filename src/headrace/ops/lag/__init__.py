"""The lag of flows, views and groups, and the time until retention deletes records that they have not read."""
