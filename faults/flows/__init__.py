"""Faults of flows: killed and replaced Spark drivers, lost checkpoints, disordered and poisonous input."""
