"""The C interface of the kernels in ctypes (maple_kernels.h), and how the library is found."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from typing import Protocol

import attrs

LIBRARY_NAME = "libmaple_kernels.so"  # as build.py names it
ABI_VERSION = 2
ERROR_BYTES = 256
PATHS = ("scalar", "avx2", "avxvnni", "avx512", "neon", "neondot", "avx512vbmi")


class Function(Protocol):
    """A function of the library."""

    def __call__(self, *arguments: object) -> int:
        """Call it."""


class KernelError(Exception):
    """The kernels refused a call; the message is their one line."""


class Matrix(ctypes.Structure):
    """maple_matrix."""

    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
        ("count", ctypes.c_int32),
    )


class Embedding(ctypes.Structure):
    """maple_embedding."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("scale_bytes", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
    )


class Layer(ctypes.Structure):
    """maple_layer."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("router", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("full", ctypes.c_int32),
    )


class Config(ctypes.Structure):
    """maple_config."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "abi_version", "layers", "hidden", "heads", "kv_heads", "head_dim", "rotary_dim", "window",
                "experts", "experts_per_token", "expert_width", "vocabulary", "normalize_experts",
            )
        ),
        *((name, ctypes.c_float) for name in ("eps", "rope_theta", "clamp")),
        *(
            (name, ctypes.c_int32)
            for name in ("activations", "kv_kind", "threads", "max_tokens", "kv_blocks", "sliding_kv_blocks")
        ),
    )  # fmt: skip


class Slice(ctypes.Structure):
    """maple_slice."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("sliding_blocks", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("start", ctypes.c_int32),
        ("block_count", ctypes.c_int32),
        ("logits", ctypes.c_int32),
    )


class Target(ctypes.Structure):
    """maple_target."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("first_block", ctypes.c_int32),
        ("block_step", ctypes.c_int32),
        ("matrix_blocks", ctypes.c_int32),
    )


class Sampling(ctypes.Structure):
    """maple_sampling."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("logits", "mask", "seen", "counted", "counts", "biased", "bias")
        ),
        *(
            (name, ctypes.c_double)
            for name in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency", "fraction")
        ),
        *(
            (name, ctypes.c_int32)
            for name in ("top_k", "seen_count", "counted_count", "bias_count", "chosen")
        ),
    )


_POINTER, _INT, _LONG, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "maple_abi_version": (_INT, ()),
    "maple_paths": (_INT, ()),
    "maple_path_name": (_TEXT, (_INT,)),
    "maple_matrix_bytes": (_LONG, (_INT, _INT, _INT)),
    "maple_create": (_POINTER, (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER)),
    "maple_destroy": (None, (_POINTER,)),
    "maple_step": (_INT, (_POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "maple_sample": (_INT, (_POINTER, _POINTER, _INT, _INT, _POINTER)),
    "maple_kv_block_bytes": (_LONG, (_POINTER, _INT)),
    "maple_kv_block": (_POINTER, (_POINTER, _INT, _INT)),
    "maple_phase_chunks": (None, (_POINTER, _INT, _INT, _POINTER)),
    "maple_linear": (_INT, (_POINTER, _POINTER, _INT, _POINTER, _INT, _INT, _POINTER)),
    "maple_read_all": (ctypes.c_uint64, (_POINTER, _LONG, _INT)),
    "maple_pack_codes2": (_INT, (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER, _INT, _POINTER)),
    "maple_pack_ternary": (_INT, (_POINTER, _INT, _INT, _INT, _POINTER, _INT, _POINTER)),
    "maple_pack_affine4": (_INT, (_POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER)),
    "maple_pack_dense": (_INT, (_POINTER, _INT, _INT, _INT, _INT, _POINTER, _INT, _POINTER)),
}


@attrs.frozen
class Unavailable:
    """Why the native kernels do not run here, in one line."""

    reason: str


@attrs.frozen(kw_only=True)
class KernelInfo:
    """The library that runs, the paths this processor can take (best first) and the one taken by default."""

    library: pathlib.Path
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        """The default path."""
        return self.paths[0]


def open_library(path: pathlib.Path) -> ctypes.CDLL:
    """Load a library and declare its functions; OSError or KernelError when it is not one of ours."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if (got := library.maple_abi_version()) != ABI_VERSION:
        raise KernelError(f"{path} has interface {got}, this package needs {ABI_VERSION}: build it again")
    return library


@functools.cache
def default_library() -> ctypes.CDLL:
    """The library beside this package."""
    return open_library(pathlib.Path(__file__).parent / LIBRARY_NAME)


def paths_of(library: ctypes.CDLL) -> tuple[str, ...]:
    """The paths that ``library`` can take on this processor, best first."""
    mask = library.maple_paths()
    best = ("avx512vbmi", "avx512", "avxvnni", "avx2", "neondot", "neon", "scalar")
    return tuple(name for name in best if mask >> PATHS.index(name) & 1)


def available() -> KernelInfo | Unavailable:
    """Whether the native kernels run in this process, and how; never raises."""
    where = pathlib.Path(__file__).parent / LIBRARY_NAME
    if not where.exists():
        return Unavailable(
            f"the kernels are not built ({where.name} is missing): run python -m maple.native.build"
        )
    try:
        library = default_library()
    except (OSError, AttributeError, KernelError) as error:
        return Unavailable(f"the kernels did not load: {error}")
    return KernelInfo(library=where, paths=paths_of(library))


def call(function: Function, *arguments: object) -> None:
    """Call a function that takes an error buffer last and returns 0, or raise ``KernelError`` with its line."""
    error = ctypes.create_string_buffer(ERROR_BYTES)
    if function(*arguments, error):
        raise KernelError(error.value.decode(errors="replace"))
