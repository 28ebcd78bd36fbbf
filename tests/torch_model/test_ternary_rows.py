"""Ternary rows at two bits: packing and unpacking lose nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maple.torch_model.affine import AffineTensor
from maple.torch_model.ternary import (
    NonFiniteWeightError,
    NotTernaryError,
    TernaryTensor,
    check_codes,
    from_words,
    pack,
)


def random_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Ternary bf16 rows, each with its own scale."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(-1, 2, shape, generator=generator)
    return (signs * torch.rand((*shape[:-1], 1), generator=generator)).bfloat16()


def words_of(codes: torch.Tensor) -> torch.Tensor:
    """Two-bit codes [..., n] as 32-bit words [..., n / 16], lowest first."""
    shifted = codes.long().unflatten(-1, (-1, 16)) << torch.arange(0, 32, 2)
    return shifted.sum(-1).to(torch.uint32)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1 << 30))
def test_packing_loses_nothing(rows: int, quads: int, seed: int) -> None:
    """Packed and expanded again, ternary rows are bit for bit what they were, but for the sign of zeros."""
    weight = random_rows(rows, 4 * quads, seed=seed)
    packed = pack(weight)
    assert packed.shape == weight.shape
    assert packed.nbytes == weight.numel() // 4 + 2 * rows
    assert torch.equal(packed.dense(torch.bfloat16), weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_a_stack_packs_like_its_matrices(dtype: torch.dtype) -> None:
    """Leading dimensions are kept, whatever float dtype holds the values, in one block or many."""
    weight = random_rows(3, 300, 2048)
    weight = (weight * 0 + weight.sign() / 64).to(dtype)
    packed = pack(weight)
    assert torch.equal(packed.dense(dtype), weight)
    assert torch.equal(packed[1].dense(dtype), weight[1])
    assert torch.equal(packed[1:].codes, packed.codes[1:])


def test_a_row_of_zeros_is_ternary() -> None:
    """Alpha is 0 for it, and the row comes back as zeros; so does one of negative zeros."""
    weight = random_rows(4, 16)
    weight[1] = 0
    weight[2] = -0.0
    packed = pack(weight)
    assert packed.alpha[1:3].tolist() == [0, 0]
    assert torch.equal(packed.dense(torch.float32), weight.float())


def test_a_negative_zero_is_a_zero() -> None:
    """-0.0 beside a magnitude counts as no weight."""
    weight = torch.tensor([[0.5, -0.0, -0.5, 0.0]]).bfloat16()
    assert torch.equal(pack(weight).dense(torch.float32), torch.tensor([[0.5, 0, -0.5, 0]]))


@pytest.mark.parametrize("row", [0, 255, 256, 599])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_second_magnitude_names_its_row(row: int, dtype: torch.dtype) -> None:
    """One deviating weight, by the last bit of bf16, is found in whatever block it lies."""
    weight = random_rows(2, 300, 2048).sign().bfloat16() * 0.5
    weight.view(-1, 2048)[row, 2047] = 0.50390625
    with pytest.raises(NotTernaryError) as caught:
        pack(weight.to(dtype))
    assert caught.value.row == row


def test_a_scale_that_bf16_cannot_hold_is_not_ternary() -> None:
    """A float32 row with a finer magnitude would lose bits when packed, and is refused."""
    with pytest.raises(NotTernaryError):
        pack(torch.full((2, 8), 0.1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_must_be_finite(value: float, dtype: torch.dtype) -> None:
    """NaN and infinities are errors of their own, not rows that happen not to be ternary."""
    weight = random_rows(4, 16).to(dtype)
    weight[2, 3] = value
    with pytest.raises(NonFiniteWeightError):
        pack(weight)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_words_are_codes_lowest_first(seed: int) -> None:
    """The MLX form, sixteen codes a word from the lowest bits up, is read without copying the words."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 3, (5, 48), generator=generator)
    words, alpha = words_of(codes), torch.rand(5, generator=generator).bfloat16()
    tensor = from_words(words, alpha)
    assert tensor.codes.data_ptr() == words.data_ptr()
    assert torch.equal(tensor.dense(torch.float32), (codes - 1) * alpha.float()[:, None])
    assert torch.equal(pack(tensor.dense(torch.bfloat16)).dense(torch.bfloat16), tensor.dense(torch.bfloat16))


@pytest.mark.parametrize("row", [None, 0, 3000, 4999])
def test_the_unused_code_is_found(row: int | None) -> None:
    """Code 3 stands for no weight; its row is named, wherever the codes 0 to 2 lie around it."""
    codes = torch.arange(5000 * 1024).view(5000, 1024).remainder(3)
    if row is not None:
        codes[row, 1001] = 3
    assert check_codes(from_words(words_of(codes), torch.ones(5000))) == row


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_product_is_that_of_the_dense_matrix(tokens: int) -> None:
    """``linear`` equals the dense product up to fp32 rounding, for fp32 and bf16 activations, in fp32."""
    weight = random_rows(64, 96)
    packed = pack(weight)
    x = torch.randn(2, tokens, 96)
    out = packed.linear(x)
    torch.testing.assert_close(out, x @ weight.float().T, atol=1e-5, rtol=1e-5)
    coarse = packed.linear(x.bfloat16())
    assert coarse.dtype == torch.float32
    torch.testing.assert_close(coarse, x.bfloat16().float() @ weight.float().T, atol=1e-5, rtol=1e-5)


def test_a_tensor_is_filled_part_by_part() -> None:
    """A stack made empty takes packed matrices by index and moves between devices whole."""
    weight = random_rows(3, 8, 16)
    stack = TernaryTensor.empty((3, 8, 16))
    for i in range(3):
        stack[i] = pack(weight[i])
    assert torch.equal(stack.to("cpu").dense(torch.bfloat16), weight)


@pytest.fixture
def table() -> AffineTensor:
    """A 4-bit table of more rows than one block, with scales of either sign."""
    generator = torch.Generator().manual_seed(3)
    rows, columns, group = 700, 128, 32
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randn(rows, columns // group, generator=generator).bfloat16()
    return AffineTensor(codes, scales, (scales * -7).bfloat16())


def expected_table(table: AffineTensor) -> torch.Tensor:
    """The definition, weight by weight, with its two roundings."""
    codes = torch.stack((table.codes & 15, table.codes >> 4), dim=-1).flatten(1)
    group = codes.shape[1] // table.scales.shape[1]
    scales = table.scales.repeat_interleave(group, dim=1)
    return (codes * scales.float()).bfloat16() + table.biases.repeat_interleave(group, dim=1)


def test_a_table_expands_as_mlx_does(table: AffineTensor) -> None:
    """Weights are scale * code + bias, product and sum each rounded to bf16, lower bits first."""
    assert table.shape == (700, 128)
    assert table.nbytes == 700 * (64 + 2 * 4 * 2)
    assert torch.equal(table.dense(torch.float32), expected_table(table).float())
    assert torch.equal(table.dense(torch.bfloat16), expected_table(table))


def test_rows_of_a_table_are_looked_up_in_any_shape(table: AffineTensor) -> None:
    """Ids of any shape give their rows; the last one of the last block too."""
    ids = torch.tensor([[0, 699, 5], [512, 511, 0]])
    assert torch.equal(table.rows(ids, torch.float32), expected_table(table).float()[ids])


def test_the_product_with_a_table_is_fp32(table: AffineTensor) -> None:
    """``linear`` rounds no weight, and neither does the dense head made for it; fp32 and bf16 activations."""
    x = torch.randn(2, 3, 128)
    codes = torch.stack((table.codes & 15, table.codes >> 4), dim=-1).flatten(1)
    scales, biases = (part.double().repeat_interleave(32, dim=1) for part in (table.scales, table.biases))
    exact = codes * scales + biases
    out = table.to("cpu").linear(x)
    torch.testing.assert_close(out.double(), x.double() @ exact.T, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(table.unrounded(torch.float32).double(), exact, atol=1e-6, rtol=1e-6)
    assert table.linear(x.bfloat16()).dtype == torch.float32
