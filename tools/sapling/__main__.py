"""Everything from seeds to the files in maple/demo.

``python -m tools.sapling`` runs all steps; a step's name as argument runs that one alone. Training resumes
where it stopped.
The figures of the card are those of the HTTP evaluation when there are any, otherwise the offline ones. A run that was
not one of the recipe has a history.md beside its checkpoint, which the card then has too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.multiprocessing.spawn import spawn

from tools.sapling import tokenizer, train
from tools.sapling.card import card
from tools.sapling.evaluate import evaluate
from tools.sapling.evaluate_http import HEADER, row
from tools.sapling.export import export
from tools.sapling.heldout import KINDS, TARGETS
from tools.sapling.model import Sapling
from tools.sapling.plot import plot
from tools.sapling.recipe import Recipe
from tools.sapling.stored import shape_of, stored_weights

DEMO = Path(__file__).parents[2] / "maple" / "demo"
STEPS = ("train", "export", "evaluate", "card")


def _train(options: argparse.Namespace, recipe: Recipe) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "tokenizer.json").exists():
        made = tokenizer.train(
            recipe.seed, recipe.tokenizer_conversations, recipe.shape.vocabulary, recipe.stages[0].mix
        )
        tokenizer.save(made, options.folder, recipe.shape.context)
    (options.folder / "rendezvous").unlink(missing_ok=True)
    until = time.time() + 60 * options.minutes if options.minutes else None
    run = train.Run(folder=options.folder.absolute(), until=until)
    spawn(train.train, (recipe, run), nprocs=recipe.processes)


def _export(options: argparse.Namespace, recipe: Recipe) -> None:
    model = Sapling(recipe.shape)
    model.load_state_dict(_checkpoint(options)["model"])
    export(model, options.demo)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(options.folder / name, options.demo / name)


def _checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(options.folder / "last.pt", weights_only=True)
    return content


def _evaluate(options: argparse.Namespace, recipe: Recipe) -> None:
    weights, shape = stored_weights(options.demo), shape_of(options.demo)
    vocabulary = Tokenizer.from_file(str(options.demo / "tokenizer.json"))
    results = []
    print(HEADER)
    for thinking in (True, False):
        for kind in KINDS:
            started = time.monotonic()
            score = evaluate(weights, shape, vocabulary, kind, options.count, thinking=thinking)
            results.append(
                {
                    "kind": kind,
                    "thinking": thinking,
                    "asked": score.asked,
                    "right": round(score.percent, 1),
                    "closed": round(100 * score.closed / score.asked, 1),
                    "target": TARGETS.get(kind) if thinking else None,
                    "seconds": round(time.monotonic() - started, 1),
                }
            )
            print(row(results[-1]), flush=True)
            for question, reply in score.wrong[: options.show]:
                print(f"    {question!r} -> {reply!r}", file=sys.stderr)
    (options.folder / "offline.json").write_text(json.dumps(results, indent=1) + "\n")


def _card(options: argparse.Namespace, recipe: Recipe) -> None:
    figures = next(
        path for path in (options.folder / "http.json", options.folder / "offline.json") if path.exists()
    )
    history = options.folder / "history.md"
    text = card(
        json.loads(figures.read_text()),
        _checkpoint(options)["state"],
        recipe,
        options.demo / "model.safetensors",
        history.read_text() if history.exists() else "",
    )
    (options.demo / "MODEL_CARD.md").write_text(text)
    plot(options.folder / "log.jsonl", options.demo / "curves.png")


def main() -> None:
    """Parses the command line and runs the steps."""
    parser = argparse.ArgumentParser(prog="python -m tools.sapling", description=__doc__)
    parser.add_argument("step", nargs="?", choices=STEPS, help="one step alone")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build/sapling"),
        help="the run's files: tokenizer, log, checkpoints",
    )
    parser.add_argument("--demo", type=Path, default=DEMO, help="where the model goes")
    parser.add_argument(
        "--minutes", type=float, help="end training after this time instead of after the recipe's tokens"
    )
    parser.add_argument("--count", type=int, default=200, help="held-out questions of each kind")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong replies of each kind")
    options = parser.parse_args()
    functions = {"train": _train, "export": _export, "evaluate": _evaluate, "card": _card}
    for step in [options.step] if options.step else STEPS:
        functions[step](options, Recipe())


if __name__ == "__main__":
    main()
