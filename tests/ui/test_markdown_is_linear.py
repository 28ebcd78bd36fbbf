"""The chat page's renderer takes linear time for any text: every redraw reads all that a model wrote."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import shutil
import subprocess

import pytest
from maple_testing.guard import HANG_GUARD, LINEAR_GUARD

UI = pathlib.Path(__file__).parents[2] / "maple" / "ui"
LENGTH = 1 << 18
DRAW = """
import fs from "node:fs";
import vm from "node:vm";
class Node {
  constructor(tag, space) {
    Object.assign(this, { tag, namespaceURI: space, nodeType: 1, childNodes: [], style: {}, attributes: {} });
  }
  append(...nodes) { this.childNodes.push(...nodes); }
  appendChild(node) { this.append(...(node.tag === undefined ? node.childNodes : [node])); }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttributeNames() { return Object.keys(this.attributes); }
  addEventListener() {}
  get firstChild() { return this.childNodes[0]; }
  get lastChild() { return { remove: () => this.childNodes.pop() }; }
  set textContent(text) { this.childNodes = text ? [text] : []; }
}
globalThis.document = {
  compatMode: "CSS1Compat",
  createElement: (tag) => new Node(tag),
  createElementNS: (space, tag) => new Node(tag, space),
  createDocumentFragment: () => new Node(),
  createTextNode: (text) => ({ nodeType: 3, text, childNodes: [] }),
};
vm.runInThisContext(fs.readFileSync(new URL("vendor/temml.min.js", process.argv[2])));
const { draw } = await import(process.argv[2]);
const count = (node) => 1 + (node.childNodes ?? []).reduce((sum, child) => sum + count(child), 0);
for (const text of JSON.parse(fs.readFileSync(0, "utf-8"))) {
  const before = process.cpuUsage();
  const root = new Node();
  draw(root, text);
  const used = process.cpuUsage(before);
  console.log(JSON.stringify([(used.user + used.system) / 1e6, count(root)]));
}
"""


def drawn(texts: list[str], folder: pathlib.Path) -> list[tuple[float, int]]:
    """Seconds of processor time and number of nodes, for each text."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    (folder / "draw.mjs").write_text(DRAW)
    shutil.copytree(UI, folder / "ui")
    (folder / "package.json").write_text('{"type": "module"}')
    command = [
        program,
        "--stack-size=900",
        str(folder / "draw.mjs"),
        (folder / "ui" / "markdown.js").as_uri(),
    ]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, timeout=HANG_GUARD, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def repeated(before: str, unit: str, after: str) -> str:
    return before + unit * (LENGTH // len(unit)) + after


NAMED = [
    repeated("a|b\n", " ", "x"),
    repeated("a|b\n|", " -|", "x"),
    repeated("a|b\n", "-", " x"),
    repeated("", "a|b\n---|---\n", ""),
    repeated("- ", " ", "x"),
    repeated("", "- a\n", ""),
    repeated("", "> ", "x"),
    repeated("-", " -", " x"),
    repeated("1", " ", "."),
    repeated("# a", " #", "x"),
    repeated("", "```\n", ""),
    repeated("", "`a", ""),
    repeated("", "**a", ""),
    repeated("", "*", ""),
    repeated("", "_a ", ""),
    repeated("", "[a", ""),
    repeated("", "[a](b", ""),
    repeated("https://", ".", ""),
    repeated("", "https://", ""),
    repeated("", "a\n", ""),
    repeated("", "\n", "x"),
    repeated("", "\t", "x"),
    repeated("", "$a ", ""),
    repeated("", "$$\na\n", ""),
    repeated("", "\\[\n", ""),
    repeated("", "\\(", ""),
    repeated("", "$" + "{" * 999 + "$ ", ""),
    repeated("", "$\\frac11$ ", ""),
    repeated("", "[^a", ""),
    repeated("[^1]: note\n\n", "[^1]", ""),
    repeated("", "^[", ""),
    repeated("", "<sub>", ""),
    repeated("", "</sup>", ""),
    repeated("", "- [ ] a\n", ""),
    repeated("", "~~a", ""),
]
LANGUAGES = (
    "bash",
    "c",
    "cpp",
    "css",
    "diff",
    "go",
    "java",
    "json",
    "markdown",
    "python",
    "rust",
    "sql",
    "xml",
    "yaml",
)


def test_texts_that_were_slow_or_could_be(tmp_path: pathlib.Path) -> None:
    """One character or mark over and over, a quarter of a million of them: far below what a square of that takes."""
    for text, (seconds, _) in zip(NAMED, drawn(NAMED, tmp_path), strict=True):
        assert seconds < LINEAR_GUARD, text[:20]


def test_any_repetition_of_anything(tmp_path: pathlib.Path) -> None:
    """Seeded: a hundred texts made of a beginning, a unit of one to four marks, and an end."""
    dice = random.Random(5)  # noqa: S311 -- seeded, no secret
    marks = [*" \n\t-*_`~>|#+.:[]()!<\\a1", "---", "```", "**", "https://"]
    texts = [
        repeated(*("".join(dice.choices(marks, k=dice.randint(1, 4))) for _ in range(3)))[: LENGTH // 2]
        for _ in range(100)
    ]
    for text, (seconds, _) in zip(texts, drawn(texts, tmp_path), strict=True):
        assert seconds < LINEAR_GUARD, text[:40]


def test_code_of_any_language(tmp_path: pathlib.Path) -> None:
    """Seeded: colouring reads as much as is coloured at all, of marks that a language could take a long time over."""
    dice = random.Random(7)  # noqa: S311 -- seeded, no secret
    marks = [*" \n\"'`/*#<>(){}[]$\\@:;=-+.,a1_", "//", "/*", "<!--", "${", "b'"]
    texts = [
        f"```{language}\n" + "".join(dice.choices(marks, k=3)) + "".join(dice.choices(marks, k=3)) * 3000
        for language in LANGUAGES
        for _ in range(3)
    ]
    for text, (seconds, _) in zip(texts, drawn(texts, tmp_path), strict=True):
        assert seconds < LINEAR_GUARD, text[:40]


def test_a_table_is_still_a_table(tmp_path: pathlib.Path) -> None:
    """By every way to rule it; two dashes alone are no rule."""
    rules = ["---|---", "|---|---|", " | :--- | ---: | ", "-|-", ":-:|:-:"]
    none = ["---", "--- ---", "a|-", "|", "-|a|-", ":|:", ":-:|:-:|:-:"]
    found = drawn([f"a|b\n{rule}\n1|2" for rule in (*rules, *none)], tmp_path)
    counts = [nodes for _, nodes in found]
    assert min(counts[: len(rules)]) > max(counts[len(rules) :])
    assert all(one == other for one, other in itertools.pairwise(counts[: len(rules)]))
