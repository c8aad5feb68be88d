"""``python -m bench.flow``."""

from bench.flow.suite import main

main()
