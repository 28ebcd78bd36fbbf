"""`python -m tools.sapling train|…`: every step from seeds to the files in maple/demo."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import attrs

from tools.sapling.recipe import Recipe


def _train(options: argparse.Namespace, recipe: Recipe) -> None:
    import torch.multiprocessing as multiprocessing

    from tools.sapling import tokenizer, train

    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "tokenizer.json").exists():
        made = tokenizer.train(recipe.seed, recipe.tokenizer_conversations, recipe.shape.vocabulary, recipe.mix)
        tokenizer.save(made, options.folder, recipe.shape.context)
    (options.folder / "rendezvous").unlink(missing_ok=True)
    until = time.time() + 60 * options.minutes if options.minutes else None
    run = train.Run(folder=options.folder.absolute(), until=until)
    multiprocessing.spawn(train.train, (recipe, run), nprocs=recipe.processes)


def main() -> None:
    """Parses the command line and runs one step."""
    parser = argparse.ArgumentParser(prog="python -m tools.sapling", description=__doc__)
    parser.add_argument("step", choices=["train"])
    parser.add_argument("--folder", type=Path, default=Path("build/sapling"), help="the run's files: tokenizer, log, checkpoints")
    parser.add_argument("--minutes", type=float, help="end after this time instead of after the recipe's tokens")
    parser.add_argument("--rate", type=float, help="another peak learning rate")
    options = parser.parse_args()
    recipe = Recipe()
    if options.rate:
        recipe = attrs.evolve(recipe, rate=options.rate)
    {"train": _train}[options.step](options, recipe)


if __name__ == "__main__":
    main()
