"""``python -m bench.log``."""

from bench.log.suite import main

main()
