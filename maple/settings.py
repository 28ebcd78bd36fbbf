"""Settings: every ``MAPLE_`` variable and flag, parsed once into one frozen object.

The table below is the single source: variables, flags, the documentation and ``maple config`` come from it.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any, Literal

import attrs

Source = Literal["default", "environment", "flag"]


Kind = Literal[
    "text",
    "source",
    "key",
    "path",
    "path_or_off",
    "choice",
    "auto_bool",
    "bool",
    "integer",
    "auto_integer",
    "number",
    "fraction",
    "list",
    "networks",
    "store",
    "device",
    "span",
    "efforts",
]


@attrs.frozen(kw_only=True)
class Spec:
    """How one setting is read: ``kind`` names its reader, ``low`` and ``high`` are inclusive bounds.

    ``variable`` and ``flag`` say whether it has a ``MAPLE_`` variable and a command-line flag.
    """

    help: str
    kind: Kind
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    variable: bool = True
    flag: bool = True


def setting(default: Any, help_text: str, **spec: Any) -> Any:
    """Declare one setting; ``spec`` are the fields of Spec."""
    return attrs.field(default=default, metadata={"spec": Spec(help=help_text, **spec)})


@attrs.frozen(kw_only=True)
class Settings:
    """All settings with their defaults. A name is its variable in lower case, without ``MAPLE_``."""

    model_path: str | None = setting(
        None,
        "folder or hub id; unset: Maple-Preview, on a CPU its 2-bit spelling",
        kind="source",
    )
    revision: str = setting("main", "branch, tag or commit of a hub checkpoint", kind="text")
    model_id: str = setting("maple-preview", "the id that clients see", kind="text")
    model_aliases: tuple[str, ...] = setting((), "further ids of the model, listed and accepted", kind="list")
    protocols: tuple[str, ...] = setting((), "protocols that are served; all by default", kind="list")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps", kind="device")
    dtype: str = setting(
        "auto", "compute type", kind="choice", choices=("auto", "float32", "bfloat16", "float16")
    )
    pack_experts: str = setting(
        "auto", "keep ternary weights at two bits (auto: on the CPU)", kind="auto_bool"
    )
    head_dtype: str = setting(
        "auto",
        "type of the output head",
        kind="choice",
        choices=("auto", "int8", "bfloat16", "float32"),
    )
    activations: str = setting(
        "int8x2", "activations in the native kernels", kind="choice", choices=("int8", "int8x2", "fp32")
    )
    kv_dtype: str = setting(
        "auto", "type of the KV cache", kind="choice", choices=("auto", "bfloat16", "float32", "int8")
    )
    torch_threads: int = setting(
        0, "threads of torch and the kernels; 0 is the physical cores", kind="integer", low=0, high=1024
    )
    cache_dir: pathlib.Path | None = setting(
        None, "where packed weights are kept; the user's cache folder by default", kind="path"
    )
    preload: bool = setting(True, "touch the weights' pages before the first request", kind="bool")
    host: str = setting("127.0.0.1", "address to listen on", kind="text")
    port: int = setting(8000, "port to listen on; 0 takes a free one", kind="integer", low=0, high=65535)
    api_key: str | None = setting(None, "the one key clients must send", kind="key", flag=False)
    api_key_file: pathlib.Path | None = setting(
        None, "file of keys, one `name:key` or `key` a line", kind="path"
    )
    allowed_origins: tuple[str, ...] = setting((), "origins whose pages may use the server", kind="list")
    allowed_hosts: tuple[str, ...] = setting(
        (), "further host names to answer to when no key is set", kind="list"
    )
    trust_proxy: tuple[str, ...] = setting(
        (), "proxies (addresses or CIDRs) whose forwarding headers are believed", kind="networks"
    )
    log_level: str = setting(
        "info", "least severe level logged", kind="choice", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto",
        "auto: colour on a terminal, JSON lines otherwise",
        kind="choice",
        choices=("auto", "console", "json"),
    )
    max_new_tokens: int = setting(4096, "new tokens where the request names no limit", kind="integer", low=1)
    max_new_tokens_limit: int = setting(32768, "most new tokens a request can have", kind="integer", low=1)
    max_prompt_tokens: int = setting(65536, "longest prompt accepted", kind="integer", low=1)
    temperature: float | None = setting(
        None, "default temperature (else the checkpoint's, else 0.6)", kind="number", low=0, high=2
    )
    top_p: float | None = setting(
        None, "default top_p (else the checkpoint's, else 0.95)", kind="fraction", low=0, high=1
    )
    top_k: int | None = setting(
        None, "default top_k (else the checkpoint's, else 20); 0 and -1 are off", kind="integer", low=-1
    )
    enable_thinking: bool = setting(True, "think unless the request says otherwise", kind="bool")
    answer_reserve: int | Literal["auto"] = setting(
        "auto",
        "tokens kept for the answer when thinking would take all; auto is 0, and 512 at the extended level",
        kind="auto_integer",
        low=0,
    )
    loop_guard: str = setting(
        "auto",
        "close reasoning that goes round in circles; auto is on at the extended level alone",
        kind="auto_bool",
    )
    reasoning_effort: tuple[str, ...] = setting(
        ("low=512", "medium=2048"),
        "most tokens of reasoning by effort, at the extended level; other words have no bound",
        kind="efforts",
    )
    include_reasoning: bool = setting(True, "send reasoning unless the request says otherwise", kind="bool")
    reasoning_parser: str = setting(
        "think", "parser that splits reasoning: a name or ./file.py:Class", kind="source"
    )
    tool_parser: str = setting(
        "maple", "parser that finds tool calls: a name or ./file.py:Class", kind="source"
    )
    strict_model: bool = setting(False, "refuse requests that name another model", kind="bool")
    strict_fields: str = setting("auto", "refuse unknown top-level fields", kind="auto_bool")
    api_level: str = setting(
        "reference",
        "reference refuses what the reference refuses; extended serves what real clients send",
        kind="choice",
        choices=("reference", "extended"),
    )
    max_batch: int | Literal["auto"] | None = setting(
        None,
        "sequences that generate at a time; auto goes by the memory; by default 1, and auto at the extended level",
        kind="auto_integer",
        low=1,
        high=32,
    )
    max_queue_depth: int = setting(16, "requests of each key that may wait", kind="integer", low=0)
    queue_timeout: float = setting(600.0, "seconds a request may wait for its slot", kind="number", low=0)
    kv_cache_mb: int | None = setting(
        None, "memory for KV caches in MiB; by default what is free", kind="integer", low=1
    )
    prefix_cache_mb: int = setting(1024, "memory for prefixes kept for reuse in MiB", kind="integer", low=0)
    shared_prefix_cache: bool = setting(False, "reuse prefixes across keys", kind="bool")
    prefix_dir: pathlib.Path | Literal["off"] | None = setting(
        None,
        "where prefixes are kept on disk, blank for nowhere; by default the cache folder at the extended level alone",
        kind="path_or_off",
    )
    prefix_disk_mb: int | None = setting(
        None,
        "most space for prefixes on disk in MiB; by default a tenth of what is free, at most 20 GB",
        kind="integer",
        low=1,
    )
    session_dir: pathlib.Path | None = setting(
        None, "where sessions are saved; unset turns saving off", kind="path"
    )
    session_max_mb: int = setting(4096, "most space for saved sessions in MiB", kind="integer", low=1)
    response_store: str | None = setting(
        None, "sqlite:FILE keeps the responses that clients ask to be stored", kind="store"
    )
    response_store_days: float = setting(
        30.0, "days after which a stored response is forgotten", kind="number", low=0.001, high=36_500
    )
    engine: str = setting(
        "local",
        "local runs the model in this process, ray on a cluster's replicas",
        kind="choice",
        choices=("local", "ray"),
    )
    ray_address: str = setting(
        "auto", "a cluster's address; auto finds this machine's or starts one, local starts one", kind="text"
    )
    replicas: tuple[int, int] = setting(
        (1, 1), "replicas of the model on a cluster: a number, or least..most", kind="span", low=1, high=1000
    )
    replica_cores: float = setting(
        0, "cores that a replica takes; 0 is the machine's", kind="number", low=0, high=1024
    )
    replica_memory_mb: int = setting(
        0, "memory that a replica takes in MiB; 0 leaves it unsaid", kind="integer", low=0
    )
    deployment: str = setting("maple", "the deployment's name, shared by its fronts", kind="text")
    request_timeout: float = setting(
        0.0, "seconds after which a generation ends as length; 0 is off", kind="number", low=0
    )
    drain_timeout: float = setting(
        30.0, "seconds that running requests get at shutdown", kind="number", low=0
    )
    body_timeout: float = setting(30.0, "seconds in which a body must arrive", kind="number", low=0.001)
    max_connections: int = setting(1024, "most open connections", kind="integer", low=1)
    metrics_public: bool = setting(False, "/metrics needs no key", kind="bool")
    ui: bool = setting(True, "serve the chat page", kind="bool")
    open: bool = setting(
        False, "open the chat page in a browser once the model is there", kind="bool", variable=False
    )
    demo: bool = setting(False, "serve the embedded model", kind="bool", variable=False)
    scripted: pathlib.Path | None = setting(
        None, "serve recorded outputs from this JSON-lines file", kind="path", variable=False
    )

    @property
    def slots(self) -> int | None:
        """Sequences that generate at a time; None: as many as the memory holds."""
        if isinstance(self.max_batch, int):
            return self.max_batch
        return 1 if self.max_batch is None and self.api_level == "reference" else None

    @property
    def reserve(self) -> int:
        """Tokens kept for the answer."""
        if isinstance(self.answer_reserve, int):
            return self.answer_reserve
        return 512 if self.api_level == "extended" else 0

    @property
    def guards_loops(self) -> bool:
        """Whether reasoning that goes round in circles is closed."""
        if self.loop_guard == "auto":
            return self.api_level == "extended"
        return self.loop_guard == "true"

    @property
    def efforts(self) -> dict[str, int]:
        """Most tokens of reasoning by the word for it."""
        return {word: int(most) for word, _, most in (one.partition("=") for one in self.reasoning_effort)}


def specs() -> dict[str, Spec]:
    """Every setting's Spec by its name, in the table's order."""
    return {field.name: field.metadata["spec"] for field in attrs.fields(Settings)}


def variable_name(name: str) -> str:
    """``max_batch`` → ``MAPLE_MAX_BATCH``."""
    return f"MAPLE_{name.upper()}"


def flag_name(name: str) -> str:
    """``max_batch`` → ``--max-batch``."""
    return f"--{name.replace('_', '-')}"
