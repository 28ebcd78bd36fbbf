"""The HTTP evaluation from outside of the repository's root, of the maple that is installed.

The root comes last on the path: it brings the tools along and hides no installed package.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tools.sapling.evaluate_http import main

sys.exit(main())
