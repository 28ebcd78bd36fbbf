"""A plain forward pass of Maple in float64: slow, readable, and what the fast paths are compared with.

It reads a checkpoint of any spelling by names of its own, so that it shares neither the plan nor the kernels
with what it checks. T tokens, H hidden size, E experts, I expert width, N heads, G KV heads, D head size.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from maple.checkpoint.shards import MappedShards, find_shards, read_shard

Floats = npt.NDArray[np.float64]
Head = Literal["rounded", "exact"]

SWIGLU_LIMIT = 7.0


class Reference:
    """A small Maple, held in float64 as dense matrices.

    head: what an affine 4-bit head means. "rounded": each weight is rounded to bf16, as MLX's ``dequantize``
    does it; "exact": scale * code + bias as it is, as MLX's own product of one vector does it. Embeddings are
    rounded in both.
    """

    def __init__(self, folder: pathlib.Path, *, head: Head = "rounded") -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self._tensors = read_tensors(folder)
        self._head: Head = head

    def logits(self, ids: list[int]) -> Floats:
        """Logits [T, vocabulary] of a whole text; row t has seen ids[: t + 1]."""
        x = self._table("model.word_embeddings", "rounded")[ids]  # [T, H]
        for i, kind in enumerate(self.config["layer_types"]):
            at = f"model.layers.{i}."
            x = x + self._attention(at, self._norm(f"{at}input_layernorm", x), kind == "sliding_attention")
            x = x + self._experts(f"{at}mlp.", self._norm(f"{at}post_attention_layernorm", x))
        return self._norm("model.norm", x) @ self._table("lm_head", self._head).T

    # -- layers

    def _attention(self, at: str, x: Floats, sliding: bool) -> Floats:
        """[T, H] to [T, H]; a sliding layer turns queries and keys by their positions and sees a window."""
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        size, tokens = self.config["head_dim"], len(x)
        q, k, v = (x @ self._ternary(f"{at}self_attn.{name}_proj").T for name in "qkv")
        q = self._norm(f"{at}self_attn.q_norm", q.reshape(tokens, heads, size))  # [T, N, D]
        k = self._norm(f"{at}self_attn.k_norm", k.reshape(tokens, kv_heads, size))  # [T, G, D]
        v = v.reshape(tokens, kv_heads, size)
        if sliding:
            q, k = self._turned(q), self._turned(k)
        k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))  # [T, N, D]
        scores = np.einsum("tnd,snd->nts", q, k) / np.sqrt(size)  # [N, T, S]
        back = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]  # how far key s lies behind query t
        seen = (back >= 0) & (back < (self.config["sliding_window"] if sliding else tokens))
        weights = _softmax(np.where(seen, scores, -np.inf))
        mixed = np.einsum("nts,snd->tnd", weights, v).reshape(tokens, heads * size)
        out: Floats = mixed @ self._ternary(f"{at}self_attn.o_proj").T
        return out

    def _turned(self, x: Floats) -> Floats:
        """RoPE over the first part of each head, [T, N, D]; dimension i turns with i + half of that part."""
        half = int(self.config["head_dim"] * self.config["partial_rotary_factor"]) // 2
        speeds = self.config["rope_theta"] ** (-np.arange(half) / half)
        angles = np.arange(len(x))[:, None, None] * speeds  # [T, 1, half]
        a, b, rest = np.split(x, [half, 2 * half], axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _experts(self, at: str, x: Floats) -> Floats:
        """[T, H] to [T, H]: each token's best experts, weighted by their share of those experts' softmax."""
        chances = _softmax(x @ self._tensors[f"{at}gate.weight"].T)  # [T, E]
        best = np.argsort(-chances, axis=-1)[:, : self.config["num_experts_per_tok"]]
        shares = np.take_along_axis(chances, best, axis=-1)
        shares = shares / (shares.sum(axis=-1, keepdims=True) + 1e-20)
        gate, up, down = (self._stack(at, name) for name in ("gate", "up", "down"))  # [E, I, H] or [E, H, I]
        out = np.zeros_like(x)
        for t, token in enumerate(x):
            for e, share in zip(best[t], shares[t], strict=True):
                gated = np.minimum(gate[e] @ token, SWIGLU_LIMIT)
                gated = gated / (1 + np.exp(-gated)) * np.clip(up[e] @ token, -SWIGLU_LIMIT, SWIGLU_LIMIT)
                out[t] += share * (down[e] @ gated)
        return out

    def _norm(self, name: str, x: Floats) -> Floats:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        normed: Floats = x / scale * self._tensors[f"{name}.weight"]
        return normed

    # -- weights

    def _stack(self, at: str, name: str) -> Floats:
        """The matrices of all experts for one projection, [E, out, in]."""
        for stem in (f"{at}switch_mlp.{name}_proj", f"{at}experts.{name}_proj"):
            if {stem, f"{stem}.weight"} & self._tensors.keys():
                return self._ternary(stem)
        experts = range(self.config["num_experts"])
        return np.stack([self._ternary(f"{at}experts.{e}.{name}_proj") for e in experts])

    def _ternary(self, stem: str) -> Floats:
        """A matrix [..., out, in], dense or as 2-bit words: alpha * (code - 1), or scale * code + bias."""
        weight = self._tensors[f"{stem}.weight" if f"{stem}.weight" in self._tensors else stem]
        if weight.dtype != np.uint32:
            return weight
        codes = _codes(weight, bits=2)
        if f"{stem}.row_alpha" in self._tensors:
            return self._tensors[f"{stem}.row_alpha"][..., None] * (codes - 1)
        scales, biases = self._by_group(stem, codes.shape[-1])
        return scales * codes + biases

    def _table(self, stem: str, meaning: Head) -> Floats:
        """Embeddings or head, [vocabulary, H], dense or as affine 4-bit words."""
        weight = self._tensors[f"{stem}.weight"]
        if weight.dtype != np.uint32:
            return weight
        codes = _codes(weight, bits=4)
        scales, biases = self._by_group(stem, codes.shape[-1])
        if meaning == "exact":
            return scales * codes + biases
        return _to_bf16(_to_bf16(scales * codes) + biases)

    def _by_group(self, stem: str, columns: int) -> tuple[Floats, Floats]:
        """Scales and biases, each repeated for the columns of its group."""
        scales, biases = self._tensors[f"{stem}.scales"], self._tensors[f"{stem}.biases"]
        group = columns // scales.shape[-1]
        return np.repeat(scales, group, axis=-1), np.repeat(biases, group, axis=-1)


def read_tensors(folder: pathlib.Path) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a checkpoint: floats as float64, words as uint32; those of other dtypes are left out."""
    shards = [read_shard(path) for path in find_shards(folder)]
    files, tensors = MappedShards(shards), {}
    for info in (info for shard in shards for info in shard.tensors.values()):
        if info.dtype == "BF16":
            bits = files.view(info).astype(np.uint32) << 16
            tensors[info.name] = bits.view(np.float32).astype(np.float64)
        elif info.dtype in ("F16", "F32"):
            tensors[info.name] = files.view(info).astype(np.float64)
        elif info.dtype == "U32":
            tensors[info.name] = files.view(info).copy()
    return tensors


def _codes(words: npt.NDArray[np.uint32], *, bits: int) -> Floats:
    """Codes [..., words * 32 / bits], the lowest bits of a word first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = words[..., None] >> shifts & np.uint32(2**bits - 1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.float64)


def _to_bf16(values: Floats) -> Floats:
    """Rounded to the nearest bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares
