// Blocks of code: coloured by highlight.js, with wrapping and copying that stay in sight.
import { button, copy, element } from "./dom.js";
import highlighter from "./vendor/highlight.min.js";

const LONGEST = 20_000; // characters; a longer text stays in one colour
const DEEPEST = 20; // spans within one another
let wrapped = false; // as the reader likes it, for all that is drawn from now on

export function codeBlock(code, language) {
  const pre = element("pre", { tabindex: "0", dir: "ltr", class: wrapped ? "wrapped" : null },
    element("code", {}, coloured(code, language)));
  const wrap = button("Wrap", () => {
    wrapped = pre.classList.toggle("wrapped");
    wrap.setAttribute("aria-pressed", String(wrapped));
  }, { class: "quiet", "aria-pressed": String(wrapped) });
  const control = button("Copy", (event) => copy(code, event.target), { class: "quiet" });
  const head = element("div", { class: "block-head" },
    element("span", {}, language || "text"), element("div", { class: "controls" }, wrap, control));
  return element("div", { class: "block" }, head, pre);
}

function coloured(code, language) {
  if (code.length > LONGEST || !highlighter.getLanguage(language)) return [code];
  return spans(highlighter.highlight(code, { language, ignoreIllegals: true })._emitter.rootNode);
}

// highlight.js's own tree, which it would write as HTML. Below DEEPEST all has one colour.
function spans(tree, depth = 0) {
  if (depth === DEEPEST) return [textOf(tree)];
  return tree.children.map((child) => {
    if (typeof child === "string") return child;
    const scope = child.scope?.split(".")[0];
    return element("span", { class: scope ? `hljs-${scope}` : null }, spans(child, depth + 1));
  });
}

function textOf(tree) {
  const open = [tree];
  let text = "";
  while (open.length) {
    const node = open.pop();
    if (typeof node === "string") text += node;
    else open.push(...node.children.toReversed());
  }
  return text;
}
