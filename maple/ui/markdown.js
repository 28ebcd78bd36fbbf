// Markdown to DOM nodes. No HTML is ever parsed: what is not markup of this small dialect stays text.
import { button, copy, element } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const RULED_CELL = /^:?-+:?$/;
const DEEPEST = 8; // quotes and lists within one another; below it their marks are text

// Draws `text` into a node. Blocks that are there already stay, with what is selected or focused in them.
export function draw(node, text) {
  const fresh = blocks(text.split("\n"), 0);
  let same = 0;
  while (same < fresh.length && node.childNodes[same]?.isEqualNode(fresh[same])) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  fresh.slice(same).forEach((block) => node.append(block));
}

const READERS = [fence, heading, rule, quote, table, list];

function readerFor(lines, at, depth) {
  return READERS.find((read) => (depth < DEEPEST || (read !== quote && read !== list)) && read(lines, at));
}

function blocks(lines, depth) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) at += 1;
    else at = (readerFor(lines, at, depth) ?? paragraph)(lines, at, out, depth);
  }
  return out;
}

// A reader without `out` says whether it applies; with it, it reads a block and answers the next line's number.
function fence(lines, at, out) {
  const open = FENCE.exec(lines[at]);
  if (!out) return open !== null;
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(open[1])) end += 1;
  out.push(codeBlock(lines.slice(at + 1, end).join("\n"), open[2]));
  return end + 1;
}

function codeBlock(code, language) {
  const control = button("Copy", (event) => copy(code, event.target), { class: "quiet" });
  const head = element("div", { class: "block-head" }, element("span", {}, language || "text"), control);
  return element("div", { class: "block" }, head, element("pre", { tabindex: "0" }, element("code", {}, code)));
}

function heading(lines, at, out) {
  const match = HEADING.exec(lines[at]);
  if (!out) return match !== null;
  // The page and its messages have the first two levels.
  out.push(element(`h${Math.min(6, match[1].length + 2)}`, {}, inline(match[2].trim().replace(/ #{1,6}$/, ""))));
  return at + 1;
}

function rule(lines, at, out) {
  if (!out) return RULE.test(lines[at]);
  out.push(element("hr"));
  return at + 1;
}

function quote(lines, at, out, depth) {
  if (!out) return /^\s*>/.test(lines[at]);
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s*> ?/, ""));
  out.push(element("blockquote", {}, blocks(inner, depth + 1)));
  return end;
}

function table(lines, at, out) {
  if (!out) return lines[at].includes("|") && isTableRule(lines[at + 1] ?? "");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const [names, ...rows] = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  const head = element("tr", {}, names.map((cell) => element("th", { scope: "col" }, inline(cell))));
  const body = rows.map((row) => element("tr", {}, row.map((cell) => element("td", {}, inline(cell)))));
  const whole = element("table", {}, element("thead", {}, head), element("tbody", {}, body));
  out.push(element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, whole));
  return end;
}

// By cells and not by one pattern, whose white space could be had in many ways: a long run of it took seconds.
function isTableRule(line) {
  return line.includes("|") && cells(line).every((cell) => RULED_CELL.test(cell));
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function list(lines, at, out, depth) {
  const first = BULLET.exec(lines[at]);
  if (!out) return first !== null;
  const ordered = /\d/.test(first[2]);
  const indent = first[1].length;
  const sibling = (line) => {
    const match = BULLET.exec(line ?? "");
    return match && match[1].length <= indent && /\d/.test(match[2]) === ordered ? match : null;
  };
  const inside = (line) => /^\s+\S/.test(line ?? "") && line.search(/\S/) > indent;
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const match = sibling(lines[end]);
    if (match) items.push([match[3]]);
    else if (inside(lines[end])) items.at(-1).push(outdented(lines[end], indent + first[2].length + 1));
    else if (!lines[end].trim() && (sibling(lines[end + 1]) || inside(lines[end + 1]))) items.at(-1).push("");
    else break;
  }
  const start = ordered && first[2] !== "1." ? parseInt(first[2], 10) : null;
  out.push(element(ordered ? "ol" : "ul", { start }, items.map((item) => listItem(item, depth))));
  return end;
}

function outdented(line, columns) {
  return line.slice(Math.min(columns, line.search(/\S/)));
}

function listItem([first, ...rest], depth) {
  if (FENCE.test(first)) return element("li", {}, blocks([first, ...rest], depth + 1));
  return element("li", {}, inline(first), blocks(rest, depth + 1));
}

function paragraph(lines, at, out, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !readerFor(lines, end, depth)) end += 1;
  const nodes = lines.slice(at, end).flatMap((line, index) => [...(index ? [element("br")] : []), ...inline(line)]);
  out.push(element("p", {}, nodes));
  return end;
}
