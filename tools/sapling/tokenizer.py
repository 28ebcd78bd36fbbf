"""Byte-level BPE of the sapling: Maple's special tokens, single digits, and the fixed phrases of the template as one token each.

A word has the same tokens after a space and after a quote, because copying depends on it; only words that are never data take
their space along. `ignore_merges` lets a fixed phrase be one token without the merges that would build it.
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
from tools.sapling.mix import conversation

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END_OF_TEXT, END_OF_TURN = 0, 2
PHRASES = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within ",
    " XML tags:\n",
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
    '\n{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '"parameters": {"type": "object", "properties": {"',
    '": {"type": "string"',
    '": {"type": "integer"',
    '": {"type": "number"',
    '": {"type": "boolean"',
    ', "description": "',
    ', "enum": ["',
    '}, "required": ["',
    '"}, "',
    '}, "',
    '"}}, "required": ["',
    '"]}}}',
    '"}}}}',
    '}}}}',
    '\n{"name": "',
    '", "arguments": {"',
    '"}}\n',
    '}}\n',
    '": "',
    '": ',
    '", "',
    ', "',
    '{"',
    '"}',
    "assistant\n",
    "user\n",
    "system\n",
)
SPACED = (
    "a an the is are am was do does did of to in on at for from with by and or not no so it that this these what which who how when "
    "where why my your you me us I he she we they be can could will would may have has had there as if then than about into please "
    "many much more like after before tell give show find get look up let need want know said asks user answer answered pass told "
    "tells remember thank welcome only small demo model cannot help outside little world fits tool tools call calls called same "
    "words word say again every capital letters write number numbers one two today tomorrow yesterday minus plus times borrow"
).split()
_PATTERN = "|".join(
    [re.escape(phrase).replace('"', '\\"').replace("\\\n", "\\n").replace("\\ ", " ") for phrase in sorted(PHRASES, key=len, reverse=True)]
    + [f" (?:{'|'.join(sorted(SPACED, key=len, reverse=True))})(?![A-Za-z])"]
    + [r"[A-Z]?[a-z]+", r"[A-Z]+", r"[0-9]", r"\n+", r"[^\S\n]+", r"[^A-Za-z0-9\s]"]
)


def train(seed: int, conversations: int, size: int, weights: dict[str, float]) -> Tokenizer:
    """A tokenizer of `size` tokens from generated conversations; special tokens take ids 0 to 8."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(TokenizerRegex(_PATTERN.replace('\\"', '"')), "isolated"),
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
