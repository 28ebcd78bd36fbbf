"""Whether the weights are still those that were loaded: asked after a failure, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Suspicion:
    """``rotted`` reads all weights, which takes seconds, and says whether a load would make them anew.

    ``tell`` is called, on the thread that looked, once it is ``confirmed``.
    """

    def __init__(self, rotted: Callable[[], bool], tell: Callable[[], None]) -> None:
        self.confirmed = False
        self._rotted = rotted
        self._tell = tell
        self._looking = threading.Lock()

    def arise(self) -> None:
        """Something failed that sound weights compute; where a look is under way, that is enough."""
        if self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="maple-weights", daemon=True).start()

    def _look(self) -> None:
        try:
            self.confirmed = self._rotted()
        except OSError as error:
            log.warning("engine.weights_unreadable", reason=error.strerror)
        finally:
            self._looking.release()
        if self.confirmed:
            self._tell()
