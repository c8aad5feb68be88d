"""Development scripts of this repository. The setup scripts need only Python: they run before anything is installed.

They use headrace's code from ``src`` to fetch Java and jars, because headrace is not installed yet.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "src"))
