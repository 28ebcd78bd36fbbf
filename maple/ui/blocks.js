// Markdown's tokens as elements: only those that are named here can come of a text.
import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { formula } from "./formulas.js";

const DIRECTED = new Set(["p", "h3", "h4", "h5", "h6", "li", "blockquote", "th", "td"]);
const TAGS = new Set([...DIRECTED, "ul", "ol", "table", "thead", "tbody", "tr", "em", "strong", "s", "sub", "sup"]);
const DEEPEST = 60; // elements within one another; what is further in belongs to the last of them

// One outermost block. `prefix` begins the ids of its footnotes.
export function build(tokens, prefix) {
  const top = element("div");
  const open = [{ tag: null, node: top }];
  for (const token of tokens) take(token, open, prefix);
  return top.childNodes.length === 1 ? top.firstChild : top;
}

function take(token, open, prefix) {
  if (token.hidden) return; // the paragraphs of a tight list
  const turn = token.meta?.turn ?? token.nesting;
  if (token.type === "inline") takeInline(token.children, open.at(-1).node, prefix);
  else if (turn === 1) enter(token, open, prefix);
  else if (turn === -1) leave(token, open);
  else open.at(-1).node.append(leaf(token, prefix));
}

// What is opened within a line ends with the line at the latest.
function takeInline(tokens, node, prefix) {
  const open = [{ tag: null, node }];
  for (const token of tokens) take(token, open, prefix);
}

function enter(token, open, prefix) {
  const { outer, inner } = open.length < DEEPEST ? opened(token, prefix) : alone(open.at(-1).node);
  if (inner !== open.at(-1).node) open.at(-1).node.append(outer);
  open.push({ tag: token.tag, node: inner });
}

// A mark that was never opened, as </sub> can be, is text; one that was left open ends with what is around it.
function leave(token, open) {
  const at = open.findLastIndex(({ tag }) => tag === token.tag);
  if (at > 0) open.length = at;
  else open.at(-1).node.append(token.markup);
}

function opened(token, prefix) {
  if (token.type === "link_open") return alone(link(token.attrGet("href")));
  if (token.type === "footnote_block_open") return within(element("section", { class: "notes" }), element("ol"));
  if (token.type === "footnote_open") return alone(element("li", { id: prefix + token.meta.id, dir: "auto" }));
  // The page and its messages have the first two levels.
  const tag = token.type === "heading_open" ? `h${Math.min(6, Number(token.tag[1]) + 2)}` : token.tag;
  if (!TAGS.has(tag)) return alone(element("div"));
  const node = element(tag, attributesOf(token, tag));
  return tag === "table" ? within(scroller(), node) : alone(node);
}

function alone(node) { return { outer: node, inner: node }; }

function within(outer, inner) {
  outer.append(inner);
  return { outer, inner };
}

function attributesOf(token, tag) {
  return {
    dir: DIRECTED.has(tag) ? "auto" : null,
    start: tag === "ol" ? token.attrGet("start") : null,
    scope: tag === "th" ? "col" : null,
    class: token.meta?.task ? "task" : /(center|right)$/.exec(token.attrGet("style") ?? "")?.[0],
  };
}

function scroller() {
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" });
}

const LEAVES = {
  text: (token) => token.content,
  code_inline: (token) => element("code", { dir: "ltr" }, token.content),
  softbreak: () => element("br"),
  hardbreak: () => element("br"),
  hr: () => element("hr"),
  image: (token) => link(token.attrGet("src"), `Picture: ${token.content || token.attrGet("src")}`),
  fence: (token) => codeBlock(token.content.replace(/\n$/, ""), token.info.trim().split(/\s+/)[0]),
  code_block: (token) => codeBlock(token.content.replace(/\n$/, ""), ""),
  formula: (token) => formula(token.content, token.block || token.meta.display),
  task: (token) => element("input", {
    type: "checkbox", disabled: true, checked: token.meta.done, "aria-label": token.meta.done ? "done" : "to do",
  }),
  footnote_ref: ({ meta }, prefix) => element("sup", {}, element("a", { href: `#${prefix}${meta.id}` }, String(meta.id + 1))),
  footnote_anchor: () => "",
};

function leaf(token, prefix) {
  return (LEAVES[token.type] ?? LEAVES.text)(token, prefix);
}

function link(target, ...children) {
  return element("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, ...children);
}
