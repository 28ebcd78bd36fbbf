// Markdown within a line, to DOM nodes. Spans have bounded lengths: no line takes long, whatever a model writes.
import { element } from "./dom.js";

const CODE = "(`{1,4})(?!`)([^`]|[^`].{0,1000}?[^`])\\1(?!`)";
const STRONG = "\\*\\*(?=\\S)(.{1,1000}?)\\*\\*";
const EMPHASIS = "(?<![\\w*])[*_](?=\\S)([^*_]{0,1000}[^*_\\s])[*_](?![\\w*])";
const LINK = "\\[([^\\]\\[]{1,400})\\]\\(([^()\\s]{1,2000})\\)";
const ADDRESS = "(https?:\\/\\/[^\\s<>()]{1,2000}(?<![.,;:!?]))";
const SPAN = new RegExp([CODE, STRONG, EMPHASIS, LINK, ADDRESS].join("|"), "g");
const SAFE_LINK = /^(https?:|mailto:)/i;

export function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(SPAN)) {
    if (match.index > end) nodes.push(text.slice(end, match.index));
    nodes.push(span(match));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

function span([whole, , code, strong, emphasis, label, target, address]) {
  if (code !== undefined) return element("code", {}, code.trim() || code);
  if (strong !== undefined) return element("strong", {}, inline(strong));
  if (emphasis !== undefined) return element("em", {}, inline(emphasis));
  if (address !== undefined) return link(address, [address]);
  return SAFE_LINK.test(target) ? link(target, inline(label)) : whole;
}

function link(target, children) {
  return element("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, children);
}
