"""From a loaded checkpoint to what the engine's thread needs of it, whatever computes."""

from __future__ import annotations

import math
import pathlib

from maple.checkpoint.describe import eos_token_ids, generation_defaults
from maple.checkpoint.fields import MapleFields
from maple.checkpoint.slots import model_slots
from maple.checkpoint.tokenizer import read_tokenizer
from maple.engine.api import Served
from maple.engine.detokenize import TokenBytes
from maple.engine.runner import LoadedEngine, PrefillLimits, Runner


def loaded_engine(
    folder: pathlib.Path,
    config: MapleFields,
    runner: Runner,
    *,
    max_model_len: int,
    prefill: PrefillLimits,
    device: str,
    dtype: str,
    attention: str,
    seconds: float,
) -> LoadedEngine:
    """The runner with the folder's tokenizer and defaults; the words and seconds are for /health and metrics.

    Ids without a token are never sampled. Raises ``LoadError``.
    """
    token_bytes = TokenBytes(read_tokenizer(folder))
    ids = token_bytes.ids()
    ids = ids[ids < config.vocab_size]
    served = Served(
        folder=folder,
        vocabulary=len(ids),
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids(folder, config),
        generation_defaults=generation_defaults(folder),
        device=device,
        dtype=dtype,
        attention=attention,
        load_seconds=seconds,
        parameters=sum(math.prod(slot.shape) for slot in model_slots(config)),
        file_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
    )
    return LoadedEngine(runner=runner, served=served, token_bytes=token_bytes, token_ids=ids, prefill=prefill)
