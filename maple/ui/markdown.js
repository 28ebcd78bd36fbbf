// Markdown to DOM nodes: markdown-it reads it, and no HTML is ever parsed or made. Whatever is no markup stays text.
import { build } from "./blocks.js";
import { mathematics } from "./formulas.js";
import { smallMarks, taskItems } from "./marks.js";
import footnotes from "./vendor/markdown-it-footnote.mjs";
import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";

const SAFE_LINK = /^(https?:|mailto:)/i;

const reader = new MarkdownIt({ html: false, linkify: true, breaks: true });
reader.use(footnotes).use(mathematics).use(smallMarks).use(taskItems);
reader.inline.ruler.disable("footnote_inline"); // as on GitHub: notes stand on lines of their own
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.validateLink = (address) => SAFE_LINK.test(address);

// What each drawn node shows: its block's source, by the nodes' parent.
const drawn = new WeakMap();
let prefixes = 0; // of footnotes' ids: every message has a first one

// Draws `text` into a node. Blocks that are there already stay, with what is selected or focused in them.
export function draw(node, text) {
  const before = drawn.get(node) ?? { prefix: `note-${(prefixes += 1)}-`, sources: [] };
  const fresh = blocksOf(text);
  let same = 0;
  while (same < fresh.length && node.childNodes[same] && fresh[same].source !== null
    && fresh[same].source === before.sources[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  fresh.slice(same).forEach((block) => node.append(build(block.tokens, before.prefix)));
  drawn.set(node, { prefix: before.prefix, sources: fresh.map((block) => block.source) });
}

// The outermost blocks, each with its source. `source` is null where a block is made of others' text.
function blocksOf(text) {
  const shared = {};
  const tokens = reader.parse(text, shared);
  const lines = text.split("\n");
  // A definition further down changes what is above it.
  const defined = [shared.references, shared.footnotes?.refs].map((names) => Object.keys(names ?? {}).length).join();
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push({ tokens: [], source: token.map && lines.slice(...token.map).join("\n") + defined });
    blocks.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return blocks;
}
