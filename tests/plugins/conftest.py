"""What pytest must not collect here, and how long a property may take."""

from __future__ import annotations

from hypothesis import settings

collect_ignore = ["acme-parser"]  # a distribution of its own, tested in an environment of its own

settings.register_profile("plugins", deadline=None)  # time says more about the machine than about the parser
settings.load_profile("plugins")
