"""What the HTTP layer is given: everything a handler may use, in one frozen object; there are no globals."""

from __future__ import annotations

import ipaddress
import pathlib
from typing import cast

import attrs
from maple_protocols.adapter import ApiLevel, Policy, ServedModel, StrictFields
from maple_protocols.kinds import Served

from maple.http.invitation import Invitation
from maple.http.keys import Keyring
from maple.memory_store import AnswerStore
from maple.observe.metrics import Metrics
from maple.observe.tracing import Tracing
from maple.settings import Settings
from maple.turns import Turns

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MODEL_CREATED = 1_789_460_000
"""The model card's ``created``, Unix seconds: a constant, lest a restart look like a new model."""

MIB = 1 << 20


@attrs.frozen(kw_only=True)
class Limits:
    """Sizes in bytes and times in seconds that are part of the contract, not settings; tests shrink them."""

    body_bytes: int = 16 * MIB
    """The largest body, as sent and as inflated."""
    bodies_bytes: int = 256 * MIB
    """The most that all bodies on their way in may hold together."""
    bodies_bytes_each: int = 64 * MIB
    """The most of it for one key, or one address where there are no keys."""
    prepare_threads: int = 3
    """How many bodies and prompts are read, inflated, structured and counted at a time."""
    prepare_threads_each: int = 2
    """How many of one key or address: fewer than all, so that nobody waits for another's whole load."""
    prepare_seconds: float = 30.0
    """The longest wait for such a thread."""
    header_bytes: int = 16 * 1024
    header_lines: int = 100
    header_seconds: float = 10.0
    surplus_seconds: float = 1.0
    """How long a connection beyond the cap has for its headers."""
    pause_seconds: float = 1.0
    """How long no connection is accepted once the descriptors have run out."""
    idle_seconds: float = 75.0
    stall_seconds: float = 60.0
    """How long a client may leave its answer unread before the connection is dropped."""
    watch_seconds: float = 0.1
    """How often a peer is looked for behind bytes that it sent beyond its request."""
    ping_seconds: float = 10.0
    """Silence on a stream before a comment line, and the longest wait for a slot before the status line."""
    progress_seconds: float = 0.5
    """How often a stream tells how far its prompt is, where it is asked to."""
    linger_seconds: float = 2.0
    """How long the rest of a refused body is thrown away, so that its sender gets to read the refusal."""
    linger_bytes: int = 64 * MIB
    settle_seconds: float = 5.0
    """How long a drain waits for the last answers to be written once the engine is idle."""


@attrs.frozen(kw_only=True)
class HttpSettings:
    """The settings that handlers read."""

    model_id: str
    strict_model: bool = False
    api_level: ApiLevel = "reference"
    strict_fields: StrictFields = "auto"
    model_aliases: tuple[str, ...] = ()
    max_tokens: int | None = None
    include_reasoning: bool = True
    response_store: bool = False
    sessions: bool = False
    allowed_origins: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    trusted_proxies: tuple[Network, ...] = ()
    body_timeout: float = 30.0
    metrics_public: bool = False
    ui: bool = True

    @property
    def policy(self) -> Policy:
        """What these settings decide about requests, before anything is known of the model."""
        return Policy(
            level=self.api_level,
            strict_fields=self.strict_fields,
            include_reasoning=self.include_reasoning,
            response_store=self.response_store,
        )

    @classmethod
    def of(cls, settings: Settings) -> HttpSettings:
        """Take what handlers need out of all the settings."""
        return cls(
            model_id=settings.model_id,
            strict_model=settings.strict_model,
            api_level=cast("ApiLevel", settings.api_level),
            strict_fields=cast("StrictFields", settings.strict_fields),
            model_aliases=settings.model_aliases,
            max_tokens=settings.max_new_tokens_limit,
            include_reasoning=settings.include_reasoning,
            response_store=settings.response_store is not None or settings.api_level == "extended",
            sessions=settings.session_dir is not None,
            allowed_origins=frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins),
            allowed_hosts=frozenset(host.lower() for host in settings.allowed_hosts),
            trusted_proxies=tuple(ipaddress.ip_network(word, strict=False) for word in settings.trust_proxy),
            body_timeout=settings.body_timeout,
            metrics_public=settings.metrics_public,
            ui=settings.ui,
        )


@attrs.frozen(kw_only=True)
class Services:
    """One per server. ``model_path`` is what clients may see of it (see ``model_label``)."""

    settings: HttpSettings
    turns: Turns
    protocols: tuple[Served, ...]
    keyring: Keyring
    metrics: Metrics
    version: str
    model_path: str
    limits: Limits = Limits()
    store: AnswerStore | None = None
    tracing: Tracing | None = None
    invitation: Invitation | None = None

    @property
    def served_model(self) -> ServedModel:
        """The model as its listing shows it."""
        served = self.turns.engine.served
        return ServedModel(
            id=self.settings.model_id,
            created=MODEL_CREATED,
            max_model_len=None if served is None else served.max_model_len,
            strict=self.settings.strict_model,
            aliases=self.settings.model_aliases,
            max_tokens=self.settings.max_tokens,
            version=self.version,
            parameters=0 if served is None else served.parameters,
            file_bytes=0 if served is None else served.file_bytes,
            quantization="" if served is None else served.dtype.rpartition(", ")[2],
        )


def model_label(model_path: str) -> str:
    """The hub id as it is, or a folder's last name: no client learns where on the disk it lies."""
    path = pathlib.Path(model_path).expanduser()
    if (
        path.exists()
        or model_path.startswith((".", "/", "~"))
        or "\\" in model_path
        or model_path.count("/") > 1
    ):
        return path.absolute().name
    return model_path
