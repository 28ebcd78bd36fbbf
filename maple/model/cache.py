"""The KV cache of one sequence: appended chunk by chunk, cut back to any length it still covers."""

from __future__ import annotations
