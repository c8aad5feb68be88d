"""Measurements beside the best peers; results land in ``bench/results/`` as JSON."""
