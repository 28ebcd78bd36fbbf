"""llama.cpp behind one line of JSON each way. Run by ``peer.py`` with a Python that has xllamacpp and gguf.

    python peer_worker.py MODEL.gguf OPTIONS      OPTIONS: {"threads", "context", "slots", "config"} as JSON

In: {"prompt": n, "tokens": m} answers {"prefill", "decode"}, and {"sequences": s, …} answers {"aggregate"},
all in tokens a second; prompts are random ids. MODEL is written first where it is missing: random weights in
llama.cpp's own types (TQ2_0, with embeddings and head in Q4_K), of the config's geometry.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)
STRETCH = 4 << 20
TERNARY_BLOCK, AFFINE_BLOCK = 66, 144  # bytes of 256 weights
CODES = np.array([a | b << 2 | c << 4 | d << 6 for a, b, c, d in np.ndindex(3, 3, 3, 3)], np.uint8)


def tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, kind and shape of every tensor, as llama.cpp names them."""
    hidden, width, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    head, vocabulary = config["head_dim"], config["vocab_size"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "token_embd", "Q4_K", (vocabulary, hidden)
    yield "output", "Q4_K", (vocabulary, hidden)
    yield "output_norm", "ones", (hidden,)
    for i in range(config["num_hidden_layers"]):
        block = f"blk.{i}."
        for name, size in (
            ("attn_norm", hidden),
            ("ffn_norm", hidden),
            ("attn_q_norm", head),
            ("attn_k_norm", head),
        ):
            yield f"{block}{name}", "ones", (size,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{block}attn_{name}", "TQ2_0", (rows, hidden)
        yield f"{block}attn_output", "TQ2_0", (hidden, queries)
        yield f"{block}ffn_gate_inp", "noise", (experts, hidden)
        for name in ("gate", "up"):
            yield f"{block}ffn_{name}_exps", "TQ2_0", (experts, width, hidden)
        yield f"{block}ffn_down_exps", "TQ2_0", (experts, hidden, width)


def data_of(kind: str, shape: tuple[int, ...]) -> Any:
    """Random weights of a kind; quantised ones as the bytes of their blocks."""
    if kind == "ones":
        return np.ones(shape, np.float32)
    if kind == "noise":
        return RNG.standard_normal(shape, np.float32) * np.float32(0.05)
    blocks = math.prod(shape) // 256
    if kind == "Q4_K":
        data = np.resize(
            RNG.integers(0, 256, (min(blocks, STRETCH // 144), AFFINE_BLOCK), np.uint8),
            (blocks, AFFINE_BLOCK),
        )
        data[:, 0:2] = np.array([0.0005], np.float16).view(np.uint8)
        data[:, 2:4] = np.array([0.004], np.float16).view(np.uint8)
    else:
        data = np.empty((blocks, TERNARY_BLOCK), np.uint8)
        data[:, :64] = np.resize(CODES[RNG.integers(0, len(CODES), min(blocks * 64, STRETCH))], (blocks, 64))
        data[:, 64:] = np.array([1.2 / math.sqrt(shape[-1])], np.float16).view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def write_model(path: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Write a GGUF file, tensor by tensor."""
    import gguf  # noqa: PLC0415 -- only where a model is to be written

    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(str(partial), "maple")
    describe(writer, config)
    for name, kind, shape in tensors(config):
        raw = None if kind in ("ones", "noise") else gguf.GGMLQuantizationType[kind]
        bytes_a_block = {"Q4_K": AFFINE_BLOCK, "TQ2_0": TERNARY_BLOCK}.get(kind)
        stored = shape if bytes_a_block is None else (*shape[:-1], shape[-1] // 256 * bytes_a_block)
        dtype = np.dtype(np.float32 if raw is None else np.uint8)
        writer.add_tensor_info(f"{name}.weight", stored, dtype, math.prod(stored) * dtype.itemsize, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, kind, shape in tensors(config):
        writer.write_tensor_data(data_of(kind, shape))
    writer.close()
    partial.rename(path)


def describe(writer: Any, config: Mapping[str, Any]) -> None:
    """The geometry, and a vocabulary of made-up words, since only ids are sent."""
    layers, vocabulary = config["num_hidden_layers"], config["vocab_size"]
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_weights_norm(True)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_vocab_size(vocabulary)
    writer.add_rope_dimension_count(0)
    sliding = [kind != "full_attention" for kind in config["layer_types"]]
    writer.add_array("maple.attention.sliding_window_pattern", sliding)
    rotary = int(config["head_dim"] * config["partial_rotary_factor"])
    writer.add_uint32("maple.rope.dimension_count_swa", rotary)
    writer.add_uint32("maple.expert_gating_func", 1)
    writer.add_array("maple.swiglu_clamp_exp", [7.0] * layers)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    words = [chr(33 + i) if i < 94 else f"w{i}" for i in range(vocabulary)]
    writer.add_token_list(words)
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_add_bos_token(False)


def server_path() -> str:
    """The instruction sets that the library was built for."""
    import xllamacpp  # noqa: PLC0415

    features = xllamacpp.get_system_info().split(":")[-1].split("|")
    pairs = (each.split("=") for each in features if "=" in each)
    return " ".join(name.strip() for name, on in pairs if int(on))


class Server:
    """The library's server with a model of its own."""

    def __init__(self, model: pathlib.Path, options: Mapping[str, Any]) -> None:
        import xllamacpp  # noqa: PLC0415 -- prints as soon as it is used: after the streams are set up

        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx, params.n_parallel, params.warmup = options["context"], options["slots"], False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
        self._server = xllamacpp.Server(params)
        self._vocabulary = options["config"]["vocab_size"]

    def answer(self, question: Mapping[str, int]) -> dict[str, float]:
        """One measurement."""
        if "sequences" not in question:
            timings = self._complete(question["prompt"], question["tokens"])
            return {"prefill": timings["prompt_per_second"], "decode": timings["predicted_per_second"]}
        count = question["sequences"]
        with ThreadPoolExecutor(count) as pool:
            work = pool.map(lambda _: self._complete(question["prompt"], question["tokens"]), range(count))
            return {"aggregate": sum(timings["predicted_per_second"] for timings in work)}

    def _complete(self, prompt: int, tokens: int) -> dict[str, float]:
        ids = [int(i) for i in RNG.integers(0, self._vocabulary - 1, prompt)]
        request = {
            "prompt": ids,
            "n_predict": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        answer = self._server.handle_completions(request)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        if "timings" not in answer:
            raise RuntimeError(str(answer))
        timings: dict[str, float] = answer["timings"]
        return timings


def answer(server: Server, line: str) -> dict[str, float]:
    """Answer a line of JSON."""
    return server.answer(json.loads(line))


def main() -> None:
    """Answer until the input ends; errors are answers too."""
    out = os.fdopen(os.dup(1), "w")
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the library prints on both
        os.dup2(silent, stream)
    model, options = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])

    def guarded(work: Callable[[], Mapping[str, Any]]) -> bool:
        try:
            found = work()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(found) + "\n")
        out.flush()
        return "error" not in found

    servers: list[Server] = []

    def start() -> dict[str, object]:
        if not model.exists():
            write_model(model, options["config"])
        servers.append(Server(model, options))
        return {"ready": True, "path": server_path()}

    if guarded(start):
        for line in sys.stdin:
            guarded(functools.partial(answer, servers[0], line))


if __name__ == "__main__":
    main()
