"""The parts of ``bench.page``."""
