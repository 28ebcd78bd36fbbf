"""Maple as a Transformers model: generate, save and load."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from maple.torch_model.configuration import MapleConfig
from maple.torch_model.kv_layers import new_cache
from maple.torch_model.layers import MapleRMSNorm, add_residual, narrowed, rotary_tables, rotate, wide_linear
from maple.torch_model.load import LoadedModel
from maple.torch_model.modeling import MapleForCausalLM
from maple.torch_model.register import register
from maple.torch_model.routing import MapleRouter, clamped_swiglu, sum_of_experts


@pytest.fixture(scope="module")
def model(golden_folder: pathlib.Path) -> MapleForCausalLM:
    """The golden model through Transformers' own loader: published names, one tensor an expert."""
    loaded: MapleForCausalLM = MapleForCausalLM.from_pretrained(
        golden_folder / "bf16-per-expert",
        config=MapleConfig.from_pretrained(golden_folder / "bf16-stacked"),
        dtype=torch.float32,
    )
    return loaded.eval()


def logits_of(model: MapleForCausalLM, ids: list[int], **kwargs: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False, **kwargs).logits[0]
    return logits


def test_registering_again_changes_nothing(golden_folder: pathlib.Path) -> None:
    """The Auto classes know Maple after an import, however often it is registered."""
    register()
    register()
    config = AutoConfig.from_pretrained(golden_folder / "bf16-stacked")
    assert type(config) is MapleConfig
    assert type(AutoModelForCausalLM.from_config(config)) is MapleForCausalLM


def test_transformers_own_loader_reads_the_published_names(model: MapleForCausalLM, golden: Any) -> None:
    """``from_pretrained`` stacks one tensor an expert, and the logits are the reference's."""
    for prompt, ids in enumerate(golden.prompts):
        assert (logits_of(model, ids) - golden.reference("bf16-per-expert", prompt)).abs().max() <= 1e-3


def test_saving_and_loading_gives_the_same_model_under_the_published_names(
    model: MapleForCausalLM, golden: Any, tmp_path: pathlib.Path, load_model: Callable[..., LoadedModel]
) -> None:
    """One tensor an expert is written; Transformers and our loader both read it back bit for bit."""
    model.save_pretrained(tmp_path / "saved")
    content = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert content["model_type"] == "maple"
    assert "auto_map" not in content
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(again) is MapleForCausalLM
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    ours = load_model(tmp_path / "saved", pack_experts="false")
    torch.testing.assert_close(
        logits_of(ours.model, golden.prompts[1]), logits_of(model, golden.prompts[1]), atol=1e-5, rtol=0
    )


def test_packed_weights_are_not_saved_as_if_they_were_dense(
    golden_folder: pathlib.Path, load_model: Callable[..., LoadedModel], tmp_path: pathlib.Path
) -> None:
    """save_pretrained refuses a packed model, and says how to get one that can be saved; nothing is written."""
    loaded = load_model(golden_folder / "mlx-2bit")
    with pytest.raises(ValueError, match="pack_experts=false"):
        loaded.model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_the_expert_implementations_agree(model: MapleForCausalLM, golden: Any, implementation: str) -> None:
    """The grouped and batched matmuls meant for accelerators honour Maple's clamped gate."""
    model.set_experts_implementation(implementation)
    logits = logits_of(model, golden.prompts[2])
    assert (logits - golden.reference("bf16-stacked", 2)).abs().max() <= 1e-3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_implementations_agree(model: MapleForCausalLM, golden: Any, attention: str) -> None:
    """Attention spelled out and torch's own give the same logits."""
    model.set_attn_implementation(attention)
    try:
        logits = logits_of(model, golden.prompts[2])
    finally:
        model.set_attn_implementation("sdpa")
    assert (logits - golden.reference("bf16-stacked", 2)).abs().max() <= 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_implementation": "static"},
        {"prompt_lookup_num_tokens": 3},
        {"use_cache": False},
        {"num_beams": 1, "output_scores": True, "return_dict_in_generate": True},
    ],
    ids=["plain", "static cache", "assisted", "no cache", "scores"],
)
def test_generate_gives_the_greedy_continuation(
    model: MapleForCausalLM, golden: Any, options: dict[str, Any]
) -> None:
    """Transformers' generate, with its caches and decoding methods, continues as the reference does."""
    ids = torch.tensor([golden.prompts[golden.greedy_prompt]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    sequence = out.sequences if hasattr(out, "sequences") else out
    assert sequence[0, ids.shape[1] :].tolist() == golden.greedy


@pytest.mark.parametrize("pack", ["true", "false"])
def test_generate_takes_our_cache_and_packed_weights(
    pack: str, golden: Any, golden_folder: pathlib.Path, load_model: Callable[..., LoadedModel]
) -> None:
    """With our KV cache it continues as the reference, also in beams and with assisted decoding's cuts."""
    loaded = load_model(golden_folder / "bf16-stacked", pack_experts=pack)
    ids = torch.tensor([golden.prompts[golden.greedy_prompt]])
    common = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    out = loaded.model.generate(ids, max_new_tokens=24, cache=new_cache(loaded.config), **common)
    assert out[0, ids.shape[1] :].tolist() == golden.greedy
    cache = new_cache(loaded.config)
    out = loaded.model.generate(ids, max_new_tokens=24, cache=cache, prompt_lookup_num_tokens=2, **common)
    assert out[0, ids.shape[1] :].tolist() == golden.greedy
    ours = loaded.model.generate(ids, max_new_tokens=6, num_beams=3, cache=new_cache(loaded.config), **common)
    theirs = loaded.model.generate(
        ids, max_new_tokens=6, num_beams=3, cache=DynamicCache(config=loaded.config), **common
    )
    assert ours.tolist() == theirs.tolist()


def test_left_padding_does_not_change_a_sequence(model: MapleForCausalLM, golden: Any) -> None:
    """In a batch padded on the left each sequence gets the logits it gets alone."""
    short, long = golden.prompts[0], golden.prompts[1]
    pad = len(long) - len(short)
    ids = torch.tensor([[0] * pad + short, long])
    mask = torch.tensor([[0] * pad + [1] * len(short), [1] * len(long)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(logits[0, pad:], logits_of(model, short), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1], logits_of(model, long), atol=1e-4, rtol=0)


def test_embeddings_can_be_given_instead_of_ids(model: MapleForCausalLM, golden: Any) -> None:
    """inputs_embeds stand in for ids; both at once, or neither, are refused."""
    ids = torch.tensor([golden.prompts[1]])
    embedded = model.get_input_embeddings()(ids)
    with torch.inference_mode():
        logits = model(inputs_embeds=embedded, use_cache=False).logits[0]
    torch.testing.assert_close(logits, logits_of(model, golden.prompts[1]))
    with pytest.raises(ValueError, match="not both"):
        model(input_ids=ids, inputs_embeds=embedded)
    with pytest.raises(ValueError, match="not both"):
        model()


def test_a_cache_is_made_when_none_is_given(model: MapleForCausalLM, golden: Any) -> None:
    """A forward pass with use_cache returns a cache that the next one goes on with."""
    ids = golden.prompts[1]
    with torch.inference_mode():
        first = model(torch.tensor([ids[:12]]), use_cache=True)
        second = model(torch.tensor([ids[12:]]), cache=first.cache)
    assert first.cache.get_seq_length() == len(ids)
    torch.testing.assert_close(second.logits[0], logits_of(model, ids)[12:], atol=1e-4, rtol=0)


def test_the_model_learns() -> None:
    """A fresh model is initialised, has a loss, and gradients reach every weight."""
    torch.manual_seed(0)
    config = MapleConfig(
        vocab_size=64,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=4,
        sliding_window=4,
    )
    model = MapleForCausalLM(config)
    ids = torch.randint(0, 64, (2, 12))
    loss = model(ids, labels=ids, use_cache=False).loss
    assert abs(loss.item() - torch.tensor(64.0).log().item()) < 0.5
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.model.norm.weight.eq(1).all()


def test_embeddings_can_be_replaced(golden_folder: pathlib.Path) -> None:
    """The embedding module is where Transformers looks for it."""
    model = MapleForCausalLM(MapleConfig.from_pretrained(golden_folder / "bf16-stacked"))
    fresh = torch.nn.Embedding(512, 128)
    model.set_input_embeddings(fresh)
    assert model.get_input_embeddings() is fresh


def test_the_window_ends_where_the_config_says(model: MapleForCausalLM, golden: Any) -> None:
    """On a sliding layer a token sees itself and the window - 1 before it, to the token."""
    layer: Any = model.model.layers[0].self_attn
    window = model.config.sliding_window
    x = torch.randn(1, 20, model.config.hidden_size)
    tables = rotary_tables(model.config, torch.arange(20)[None])
    masks = model.model.masks(x, None, None)
    with torch.inference_mode():
        before = layer(x, tables, masks["sliding_attention"], None)
        x[:, 3] += 1
        after = layer(x, tables, masks["sliding_attention"], None)
    changed = (before != after).any(-1)[0].nonzero().flatten().tolist()
    assert changed == list(range(3, 3 + window))


def test_full_layers_have_no_positions(model: MapleForCausalLM) -> None:
    """On a full layer the last token's output does not depend on the order of those before it."""
    layer: Any = model.model.layers[3].self_attn
    x = torch.randn(1, 9, model.config.hidden_size)
    shuffled = torch.cat((x[:, torch.tensor([4, 2, 7, 0, 1, 3, 6, 5])], x[:, 8:]), dim=1)
    tables = rotary_tables(model.config, torch.arange(9)[None])
    with torch.inference_mode():
        outputs = [layer(y, tables, None, None)[0, -1] for y in (x, shuffled)]
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=0)


def test_rope_turns_only_the_first_dims() -> None:
    """Pairs (i, i + half) of the leading dims turn by position * theta^(-i / half); the other dims stay."""
    config = MapleConfig(head_dim=16, num_hidden_layers=1)
    x = torch.randn(1, 1, 3, 16)
    turned = rotate(x, rotary_tables(config, torch.tensor([[0, 1, 5]])))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])
    for i in range(4):
        pair = torch.complex(x[0, 0, 2, i], x[0, 0, 2, i + 4])
        angle = torch.tensor(5 * 10000.0 ** (-i / 4))
        expected = pair * torch.polar(torch.tensor(1.0), angle)
        torch.testing.assert_close(torch.view_as_real(expected), turned[0, 0, 2, [i, i + 4]])


def test_norm_and_residual_round_once() -> None:
    """In bf16 both equal the fp32 result rounded at the end."""
    torch.manual_seed(1)
    norm = MapleRMSNorm(64, 1e-6).to(torch.bfloat16)
    norm.weight.data = torch.randn(64).bfloat16()
    x, y = torch.randn(5, 64).bfloat16(), torch.randn(5, 64)
    wide = x.float()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight.float()
    torch.testing.assert_close(norm(x), exact.bfloat16(), rtol=1e-7, atol=1e-7)
    assert torch.equal(add_residual(x, y), (wide + y).bfloat16())


def test_narrowing_saturates() -> None:
    """What half precision cannot hold becomes its largest number; fp32 passes as it is."""
    x = torch.tensor([1e6, -1e6, 1 / 3, float("nan")])
    narrow = narrowed(x, torch.float16)
    assert narrow[:3].tolist() == [65504, -65504, x[2].half().item()]
    assert narrow[3].isnan()
    assert narrowed(x, torch.float32) is x


@pytest.mark.parametrize("rows", [1, 512, 1300])
def test_a_16_bit_matrix_multiplies_in_fp32(rows: int) -> None:
    """However many blocks of rows there are, the product is that of the widened matrix, with gradients too."""
    x, weight = torch.randn(2, 3, 8), torch.randn(rows, 8).bfloat16()
    expected = x @ weight.float().T
    with torch.inference_mode():
        torch.testing.assert_close(wide_linear(x, weight), expected)
    torch.testing.assert_close(wide_linear(x, weight.requires_grad_()), expected)


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
def test_what_an_accelerator_computes_has_dtypes_that_fit(golden_folder: pathlib.Path, experts: str) -> None:
    """Off the CPU, in bf16, attention reads half precision, and all products find operands of one dtype."""
    config = MapleConfig.from_pretrained(golden_folder / "bf16-stacked")
    with torch.device("meta"):
        model = MapleForCausalLM(config).to(torch.bfloat16).eval()
    model.set_experts_implementation(experts)
    cache = new_cache(config)
    for tokens in (5, 1):
        with torch.inference_mode():
            ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
            logits = model(ids, cache=cache, use_cache=True).logits
        assert (logits.dtype, logits.shape) == (torch.float32, (1, tokens, config.vocab_size))
    assert cache.layers[0].keys.dtype == torch.float16


def test_the_router_takes_the_best_of_all_experts_and_renormalises() -> None:
    """Softmax over all, the k best, divided by their sum; fp32 for bf16 input too."""
    config = MapleConfig(hidden_size=8, num_experts=6, num_experts_per_tok=2, num_hidden_layers=1)
    router = MapleRouter(config)
    router.weight.data = torch.randn(6, 8)
    x = torch.randn(4, 8).bfloat16()
    experts, weights = router(x)
    scores = (x.double() @ router.weight.double().T).softmax(-1)
    expected, order = scores.sort(-1, descending=True)
    assert torch.equal(experts, order[:, :2])
    assert weights.dtype == torch.float32
    torch.testing.assert_close(
        weights, (expected[:, :2] / expected[:, :2].sum(-1, keepdim=True)).float(), atol=1e-6, rtol=0
    )


def test_the_gate_is_clamped_above_and_the_rest_on_both_sides() -> None:
    """silu(min(gate, 7)) * clamp(up, -7, 7)."""
    gate = torch.tensor([100.0, -100.0, 1.0, 1.0, 7.0])
    up = torch.tensor([1.0, 1.0, 100.0, -100.0, 2.0])
    silu = torch.nn.functional.silu(torch.tensor([7.0, -100.0, 1.0, 1.0, 7.0]))
    torch.testing.assert_close(clamped_swiglu(gate, up, 7.0), silu * torch.tensor([1.0, 1.0, 7.0, -7.0, 2.0]))


def test_experts_are_summed_by_weight_whatever_the_neighbours() -> None:
    """Each token's sum is the same alone and in a batch, bit for bit, when an expert treats rows alike."""
    torch.manual_seed(2)
    x, experts = torch.randn(7, 4), torch.randint(0, 5, (7, 2))
    weights = torch.rand(7, 2)
    calls: list[int] = []

    def run(expert: int, rows: torch.Tensor) -> torch.Tensor:
        calls.append(expert)
        return rows * (expert + 1)

    together = sum_of_experts(run, x, experts, weights)
    assert calls == sorted(set(experts.flatten().tolist()))
    for i in range(7):
        alone = sum_of_experts(run, x[i : i + 1], experts[i : i + 1], weights[i : i + 1])
        assert torch.equal(alone[0], together[i])
    torch.testing.assert_close(together, x * (weights * (experts + 1)).sum(-1, keepdim=True))
