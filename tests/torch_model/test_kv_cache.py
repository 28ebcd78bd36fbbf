"""Torch's KV cache: layers that keep all, and layers with a window."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maple.torch_model.configuration import MapleConfig
from maple.torch_model.kv_layers import CannotTruncateError, KVCache, KVLayer, new_cache
from maple.torch_model.load import LoadedModel

WINDOW = 8


def chunk(start: int, stop: int, batch: int = 1) -> torch.Tensor:
    """Keys [batch, 2, tokens, 4] whose entries are their positions."""
    return torch.arange(start, stop).float().view(1, 1, -1, 1).expand(batch, 2, -1, 4)


def append(layer: KVLayer, tokens: int) -> list[int]:
    """Append ``tokens`` positions; returns those that attention sees, all else checked."""
    length, first = layer.get_mask_sizes(tokens)
    new = chunk(layer.length, layer.length + tokens)
    keys, values = layer.update(new, -new)
    assert torch.equal(values, -keys)
    seen = [int(position) for position in keys[0, 0, :, 0]]
    assert seen == list(range(first, first + length))
    return seen


def test_a_full_layer_shows_everything() -> None:
    """A layer without a window returns every position, whatever the chunks."""
    layer = KVLayer()
    for tokens in (5, 1, 1, 300, 1):
        seen = append(layer, tokens)
    assert seen == list(range(308))
    assert not layer.is_sliding


@pytest.mark.parametrize("history", [None, 0, 5])
def test_a_sliding_layer_shows_what_the_oldest_query_sees(history: int | None) -> None:
    """A chunk's first query sees itself and the window - 1 positions before it, and none before those."""
    layer = KVLayer(WINDOW, history)
    for tokens in (3, 1, 20, 1, 1, 700, 1, 2, 600, 1):
        start = layer.length
        assert append(layer, tokens) == list(range(max(0, start - WINDOW + 1), start + tokens))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_appends_and_cuts_reads_like_a_plain_list(data: st.DataObject) -> None:
    """After any appends and cuts, a layer shows exactly the positions a list cut the same way would."""
    layer = KVLayer(
        data.draw(st.sampled_from([None, 1, 2, WINDOW])), data.draw(st.sampled_from([None, 0, 3, 400]))
    )
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            append(layer, data.draw(st.integers(1, 400)))
            continue
        length = data.draw(st.integers(layer.shortest, layer.length))
        layer.truncate(length)
        assert layer.get_seq_length() == length


def test_history_bounds_what_a_long_sequence_holds() -> None:
    """With a bounded history a sliding layer stops growing, and cuts within the history still work."""
    layer = KVLayer(WINDOW, 64)
    append(layer, 100)
    for _ in range(40):
        append(layer, 64)
    plain = KVLayer(WINDOW)
    append(plain, layer.length)
    assert layer.nbytes < plain.nbytes / 2
    assert layer.length - layer.shortest >= 64
    layer.truncate(layer.length - 64)
    start = layer.length
    assert append(layer, 1) == list(range(start - WINDOW + 1, start + 1))


def test_a_cut_behind_the_history_is_refused_and_changes_nothing() -> None:
    """A length not covered, negative, or beyond the end raises with the shortest possible length."""
    layer = KVLayer(WINDOW, 0)
    append(layer, 1000)
    append(layer, 1)
    for length in (0, layer.shortest - 1, -1, layer.length + 1):
        with pytest.raises(CannotTruncateError) as caught:
            layer.truncate(length)
        assert caught.value.shortest == layer.shortest > 0
    assert layer.length == 1001


def test_cutting_everything_starts_anew() -> None:
    """A layer that still holds its beginning can be cut to nothing and filled again."""
    layer = KVLayer(WINDOW)
    append(layer, 30)
    layer.truncate(0)
    assert append(layer, 4) == [0, 1, 2, 3]


def test_reset_frees_the_buffers() -> None:
    """After reset a layer is as new, and holds no memory."""
    layer = KVLayer(WINDOW)
    append(layer, 30)
    assert layer.nbytes > 0
    layer.reset()
    assert (layer.nbytes, layer.length) == (0, 0)
    assert append(layer, 2) == [0, 1]


def test_the_cache_follows_the_layer_types() -> None:
    """One layer a decoder layer, sliding where the config says so; unlimited, and croppable."""
    cache = new_cache(MapleConfig(num_hidden_layers=4, sliding_window=WINDOW))
    assert cache.is_sliding == [True, True, True, False]
    assert cache.get_max_length() == -1
    assert cache.is_croppable
    assert (cache.length, cache.nbytes, cache.shortest) == (0, 0, 0)


def test_the_cache_cuts_all_layers_or_none() -> None:
    """A length that one layer no longer covers leaves every layer as it was."""
    cache = KVCache([KVLayer(), KVLayer(WINDOW, 0)])
    for layer, tokens in itertools.product(cache.layers, (1000, 1)):
        append(layer, tokens)
    with pytest.raises(CannotTruncateError):
        cache.truncate(3)
    assert [layer.length for layer in cache.layers] == [1001, 1001]
    cache.truncate(cache.shortest)
    assert cache.layers[0].length == cache.layers[1].length == cache.shortest


def test_the_cache_takes_transformers_words_for_cutting() -> None:
    """``crop`` with a negative count drops that many tokens, as Transformers' assisted decoding calls it."""
    cache = KVCache([KVLayer(), KVLayer(WINDOW)])
    for layer in cache.layers:
        append(layer, 20)
    cache.crop(-5)
    assert cache.length == 15
    cache.crop(0)
    assert cache.length == 15


def test_batches_can_be_repeated_selected_and_reordered() -> None:
    """The batch operations of generate (several answers, beams) act on the filled positions."""
    layer = KVLayer(WINDOW)
    keys = torch.stack([torch.zeros(2, 5, 4), torch.ones(2, 5, 4)])
    layer.update(keys, keys)
    layer.batch_repeat_interleave(2)
    assert layer.keys[:, 0, 0, 0].tolist() == [0, 0, 1, 1]
    layer.batch_select_indices(torch.tensor([3, 0]))
    assert layer.keys[:, 0, 0, 0].tolist() == [1, 0]
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer.keys[:, 0, 0, 0].tolist() == [0, 0]


def test_batch_operations_on_an_empty_layer_do_nothing() -> None:
    """Before the first chunk there is nothing to repeat, select or reorder."""
    layer = KVLayer()
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([0]))
    layer.reorder_cache(torch.tensor([0]))
    assert layer.length == 0


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 30, 59])
def test_a_sequence_goes_on_from_where_it_was_cut(
    cut: int, golden: Any, golden_folder: Any, load_model: Callable[..., LoadedModel]
) -> None:
    """After a cut to any length, other tokens get the logits they would get after that prefix alone."""
    loaded = load_model(golden_folder / "bf16-stacked")
    ids, others = golden.prompts[2][:60], golden.prompts[1]
    cache = new_cache(loaded.config)
    with torch.inference_mode():
        loaded.model(torch.tensor([ids]), cache=cache, use_cache=True)
        cache.truncate(cut)
        logits = loaded.model(torch.tensor([others]), cache=cache, use_cache=True).logits[0]
        whole = loaded.model(torch.tensor([ids[:cut] + others]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, whole[cut:], atol=1e-4, rtol=0)
