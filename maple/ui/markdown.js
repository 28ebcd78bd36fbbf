// Markdown to DOM nodes. No HTML is ever parsed: what is not markup of this small dialect stays text.
import { button, copy, element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const BULLET = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
const SAFE_LINK = /^(https?:|mailto:)/i;

export function render(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.split("\n")));
  return fragment;
}

function blocks(lines) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const reader = [fence, heading, rule, quote, table, list].find((read) => read(lines, at, null));
    if (!line.trim()) at += 1;
    else if (reader) at = reader(lines, at, out);
    else at = paragraph(lines, at, out);
  }
  return out;
}

// Each reader answers 0 or the next line's number; with `out` null it only says whether it applies.
function fence(lines, at, out) {
  const open = FENCE.exec(lines[at]);
  if (!open) return 0;
  if (!out) return 1;
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(open[1])) end += 1;
  out.push(codeBlock(lines.slice(at + 1, end).join("\n"), open[2]));
  return end + 1;
}

function codeBlock(code, language) {
  const control = button("Copy", (event) => copy(code, event.target), { class: "copy" });
  const pre = element("pre", { tabindex: "0" }, element("code", { "data-language": language || null }, code));
  return element("div", { class: "block" }, pre, control);
}

function heading(lines, at, out) {
  const match = HEADING.exec(lines[at]);
  if (!match) return 0;
  if (out) out.push(element(`h${Math.min(6, match[1].length + 2)}`, {}, ...inline(match[2])));
  return at + 1;
}

function rule(lines, at, out) {
  if (!RULE.test(lines[at])) return 0;
  if (out) out.push(element("hr"));
  return at + 1;
}

function quote(lines, at, out) {
  if (!/^\s*>/.test(lines[at])) return 0;
  if (!out) return 1;
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
  out.push(element("blockquote", {}, ...blocks(lines.slice(at, end).map((line) => line.replace(/^\s*> ?/, "")))));
  return end;
}

function table(lines, at, out) {
  if (!lines[at].includes("|") || !TABLE_RULE.test(lines[at + 1] ?? "")) return 0;
  if (!out) return 1;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  const head = element("tr", {}, ...rows[0].map((cell) => element("th", { scope: "col" }, ...inline(cell))));
  const body = rows.slice(1).map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, ...inline(cell)))));
  out.push(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
  return end;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function list(lines, at, out) {
  const first = BULLET.exec(lines[at]);
  if (!first) return 0;
  if (!out) return 1;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const match = BULLET.exec(lines[end]);
    if (match && match[1].length <= first[1].length && /\d/.test(match[2]) === ordered) items.push([match[3]]);
    else if (items.length && lines[end].trim() && /^\s/.test(lines[end])) items.at(-1).push(lines[end].slice(first[1].length + 2));
    else break;
    end += 1;
  }
  const start = ordered ? parseInt(first[2], 10) : null;
  const nodes = items.map((item) => element("li", {}, ...(item.length > 1 ? blocks(item) : inline(item[0]))));
  out.push(element(ordered ? "ol" : "ul", { start }, ...nodes));
  return end;
}

function paragraph(lines, at, out) {
  let end = at + 1;
  const stops = [fence, heading, rule, quote, table, list];
  while (end < lines.length && lines[end].trim() && !stops.some((read) => read(lines, end, null))) end += 1;
  const nodes = [];
  lines.slice(at, end).forEach((line, index) => {
    if (index) nodes.push(element("br"));
    nodes.push(...inline(line));
  });
  out.push(element("p", {}, ...nodes));
  return end;
}

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(?=\S)(.+?)\*\*|(?<![\w*])[*_](?=\S)([^*_]+?)[*_](?![\w*])|\[([^\]]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?])/;

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    if (match.index) nodes.push(rest.slice(0, match.index));
    nodes.push(span(match));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function span(match) {
  const [whole, , code, strong, emphasis, label, target, url] = match;
  if (code !== undefined) return element("code", {}, code.trim() || code);
  if (strong !== undefined) return element("strong", {}, ...inline(strong));
  if (emphasis !== undefined) return element("em", {}, ...inline(emphasis));
  if (url !== undefined) return link(url, [url]);
  return SAFE_LINK.test(target) ? link(target, inline(label)) : document.createTextNode(whole);
}

function link(target, children) {
  return element("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, ...children);
}
