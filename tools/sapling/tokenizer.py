"""Byte-level BPE of the sapling: Maple's special tokens, single digits, and the fixed phrases of the
template as one token each.

A word has the same tokens after a space and after a quote, because copying depends on it; only words that
are never data take
their space along. ``ignore_merges`` lets a fixed phrase be one token without the merges that would build it.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers import Regex as TokenizerRegex

from tools.sapling.conversation import segments
from tools.sapling.hints import Markers
from tools.sapling.mix import conversation
from tools.sapling.tables import table

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END_OF_TEXT, END_OF_TURN = 0, 2
PHRASES: list[str] = table("tokens")["phrases"]
SPACED: list[str] = table("tokens")["spaced"].split()


def _longest_first(texts: list[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


# A text is cut by the first of these that matches: a phrase, a spaced word, a word, a digit, white space, a
# sign.
_PATTERN = "|".join(
    [
        *map(re.escape, _longest_first(PHRASES)),
        f" (?:{'|'.join(_longest_first(SPACED))})(?![A-Za-z])",
        "[A-Z]?[a-z]+",
        "[A-Z]+",
        "[0-9]",
        r"\n+",
        r"[^\S\n]+",
        r"[^A-Za-z0-9\s]",
    ]
)


def train(seed: int, conversations: int, size: int, weights: dict[str, float]) -> Tokenizer:
    """A tokenizer of ``size`` tokens from generated conversations; special tokens take ids 0 to 8."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(TokenizerRegex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(seed)
    texts = ["".join(text for text, _ in segments(conversation(rng, weights))) for _ in range(conversations)]
    plain = [re.sub("|".join(re.escape(token) for token in SPECIAL + MARKERS), "", text) for text in texts]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(PHRASES),
        special_tokens=[*SPECIAL, *MARKERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=14,
        show_progress=False,
    )
    tokenizer.train_from_iterator(plain, trainer)
    return _finished(tokenizer, size)


def markers(tokenizer: Tokenizer) -> Markers:
    """The phrases between the parts of a prompt, by their ids."""

    def phrase(start: str) -> int:
        text = next(text for text in PHRASES if text.startswith(start))
        return int(tokenizer.encode(text, add_special_tokens=False).ids[0])

    return Markers(
        tool=phrase('\n{"type": "function"'),
        joint=int(tokenizer.encode("_", add_special_tokens=False).ids[0]),
        after_name=(phrase('", "description"'), phrase('", "parameters"')),
        end=phrase("\n</tools>"),
        user=phrase("user\n"),
        end_of_turn=END_OF_TURN,
        texts=tuple(
            tokenizer.decode([token], skip_special_tokens=False)
            for token in range(tokenizer.get_vocab_size())
        ),
    )


def word_pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tokens of two letters and more that words are made of, in a fixed order."""
    return tuple(
        sorted(
            token for token in tokenizer.get_vocab() if re.fullmatch("[A-Z]?[a-z]+", token) and len(token) > 1
        )
    )


def _finished(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Adds the phrases to the vocabulary and flags as special only what Maple flags so."""
    state: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for phrase in PHRASES:
        spelled = "".join(piece for piece, _ in as_bytes.pre_tokenize_str(phrase))
        vocabulary.setdefault(spelled, len(vocabulary))
    state["added_tokens"] = []
    finished = Tokenizer.from_str(json.dumps(state))
    finished.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    finished.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKERS])
    if finished.get_vocab_size() > size:
        raise ValueError(f"{finished.get_vocab_size()} tokens, but {size} were asked for")
    return finished


def config(context: int) -> dict[str, Any]:
    """The tokenizer_config.json that goes with the tokenizer."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "extra_special_tokens": {},
        "model_max_length": context,
        "pad_token": "<|endoftext|>",
        "padding_side": "right",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def save(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config(context), indent=1) + "\n")
