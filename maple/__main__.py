"""``python -m maple``."""

from __future__ import annotations

import sys

from maple.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
