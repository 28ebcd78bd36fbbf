"""The program's first lines, for ``python -m maple`` and for ``maple``: what must hold before anything is imported."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    _fill_standard_streams()
    if not sys.argv[1:] or sys.argv[1] == "serve" or sys.argv[1].startswith("-"):
        # A server rereads its keys at SIGHUP; the default action would end it until it gets that far.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from maple.cli.main import main as run  # noqa: PLC0415 -- a quarter of a second in which signals may come

    return run()


def _fill_standard_streams() -> None:
    """Give a closed stderr or stdout (``2>&-``) to the null device: the next file opened would take its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- a descriptor
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- a descriptor


if __name__ == "__main__":
    sys.exit(main())
