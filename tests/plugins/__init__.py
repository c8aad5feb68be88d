"""Rules about the suite as a whole, as pytest plugins."""
