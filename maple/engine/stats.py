"""What an engine tells of itself: who runs and waits, counts, and what became of sessions."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen(kw_only=True)
class JobStatus:
    """How far a job is. ``position`` counts from 1 while it is queued, for a slot or for memory.

    Of the ``total`` tokens of its prompt ``processed`` are computed, ``cached`` of them before. ``seconds`` since it
    came, ``decode_seconds`` since its first of ``generated`` tokens.
    """

    request_id: str
    owner: str
    state: Literal["queued", "prefill", "decode"]
    position: int
    total: int
    cached: int
    processed: int
    generated: int
    seconds: float
    decode_seconds: float


@attrs.frozen(kw_only=True)
class Queued:
    """A job that waits for its slot or for memory: ``position`` from 1, ``seconds`` so far."""

    request_id: str
    position: int
    seconds: float


@attrs.frozen(kw_only=True)
class Prefill:
    """How far the prompt of a job with a slot has been computed, in tokens; ``cached_tokens`` were there.

    ``done_tokens`` is 0 while the job waits for memory, or for another to compute the same prompt.
    """

    request_id: str
    done_tokens: int
    prompt_tokens: int
    cached_tokens: int


@attrs.frozen(kw_only=True)
class ReplicaLoad:
    """A replica of a cluster: on the machine ``node``, with ``load`` jobs of its ``slots``, those that wait there too.

    ``held_tokens`` are ids of prompts that it is believed to have keys and values of.
    """

    replica: str
    node: str
    slots: int
    load: int
    held_tokens: int


@attrs.frozen(kw_only=True)
class EngineStats:
    """A snapshot; counters only grow. ``running`` holds slots, ``waiting`` queues.

    ``prefix_cache_queries`` are prompts that were looked up for reuse, ``prefix_cache_hits`` those of which
    something was reused, ``prefix_cache_evictions`` kept prefixes that were dropped for room. ``sessions``
    are live ones. The disk's figures are bytes of blocks there, and what this process wrote, read and found damaged.
    ``queue`` and ``prefills`` are in order; ``replicas`` are a cluster's, empty without one.
    """

    running: int = 0
    waiting: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0
    kv_blocks: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_evictions: int = 0
    sessions: int = 0
    prefix_disk_bytes: int = 0
    prefix_disk_written_blocks: int = 0
    prefix_disk_read_blocks: int = 0
    prefix_disk_damaged_blocks: int = 0
    queue: tuple[Queued, ...] = ()
    prefills: tuple[Prefill, ...] = ()
    replicas: tuple[ReplicaLoad, ...] = ()


@attrs.frozen(kw_only=True)
class SessionManifest:
    """What was saved of a session: ``tokens`` with their keys and values, in a file of ``bytes`` bytes.

    ``model`` names the weights, ``sha256`` is the file's, ``created_at`` in Unix seconds.
    """

    version: int
    session_id: str
    model: str
    kv_format: str
    tokens: int
    bytes: int
    sha256: str
    created_at: int


@attrs.frozen(kw_only=True)
class SessionLoaded:
    """A saved session is live again, with so many tokens."""

    session_id: str
    tokens: int
    bytes: int
    load_ms: float
