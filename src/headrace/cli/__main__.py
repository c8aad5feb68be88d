"""``python -m headrace.cli`` runs the ``headrace`` command without its installed script."""

from __future__ import annotations

import sys

from headrace.cli import main

sys.exit(main())
