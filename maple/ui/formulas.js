// Mathematics: $…$, $$…$$, \(…\) and \[…\] are found by Markdown's reader, and become MathML by Temml.
import { element } from "./dom.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const LONGEST = 4000; // characters of a formula; a longer one stays text
const MOST_LINES = 100; // of a displayed formula
const DEEPEST = 80; // elements within one another
const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

// A markdown-it plugin.
export function mathematics(reader) {
  reader.block.ruler.before("fence", "formula", displayed, { alt: ["paragraph", "blockquote", "list"] });
  reader.inline.ruler.before("escape", "formula", inLine);
}

function displayed(state, first, last, silent) {
  const begin = state.bMarks[first] + state.tShift[first];
  const pair = PAIRS.find(([open, , block]) => block && state.src.startsWith(open, begin));
  if (!pair || state.sCount[first] - state.blkIndent >= 4) return false;
  let end = first;
  const closes = (line) => {
    const text = state.src.slice(line === first ? begin + 2 : state.bMarks[line], state.eMarks[line]).trimEnd();
    return text.endsWith(pair[1]);
  };
  while (end < last && end - first < MOST_LINES && !closes(end)) end += 1;
  if (end >= last || !closes(end)) return false;
  if (silent) return true;
  const token = state.push("formula", "math", 0);
  token.content = state.getLines(first, end + 1, state.blkIndent, false).trim().slice(2, -2);
  token.block = true;
  token.map = [first, end + 1];
  state.line = end + 1;
  return true;
}

function inLine(state, silent) {
  const { src, pos } = state;
  const pair = PAIRS.find(([open]) => src.startsWith(open, pos));
  if (!pair) return false;
  const [open, close, display] = pair;
  const rest = src.slice(pos + open.length, pos + LONGEST);
  const length = rest.indexOf(close);
  if (length < 1 || (open === "$" && !meansMathematics(rest, length))) return false;
  if (!silent) {
    const token = state.push("formula", "math", 0);
    token.content = rest.slice(0, length);
    token.meta = { display };
  }
  state.pos = pos + open.length + length + close.length;
  return true;
}

// Between dollars that are no money: nothing blank inside the marks, and no digit behind them.
function meansMathematics(rest, length) {
  return !/\s/.test(rest[0] + rest[length - 1]) && !/\d/.test(rest[length + 1] ?? "") && !rest.slice(0, length).includes("`");
}

// A formula as MathML, or its source where it is none.
export function formula(source, display) {
  const node = element("span", { class: display ? "formula display" : "formula", tabindex: display ? "0" : null });
  try {
    globalThis.temml.render(source, node, { displayMode: display, throwOnError: true, maxExpand: 200, maxSize: [20, 20] });
  } catch {
    return written(source);
  }
  return harmless(node) ? node : written(source);
}

function written(source) { return element("code", { class: "formula", dir: "ltr" }, source); }

// Whether there is nothing but mathematics in it, and not too much within one another to lay out.
function harmless(root) {
  let level = [...root.childNodes];
  for (let depth = 0; level.length; depth += 1) {
    if (depth > DEEPEST || level.some((node) => node.nodeType === 1 && foreign(node))) return false;
    level = level.flatMap((node) => [...node.childNodes]);
  }
  return true;
}

function foreign(node) {
  return node.namespaceURI !== MATHML || node.getAttributeNames().some((name) => name.startsWith("on") || name.includes("href"));
}
