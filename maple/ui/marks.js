// What people write in Markdown beside CommonMark: <br>, <sub>, <sup>, and the boxes of task lists.

const MARK = /<(?:(br)\s*\/?|(\/?)(sub|sup))>/iy;
const BOX = /^\[([ xX])\]\s/;

// A markdown-it plugin. The marks become tokens of their own; all other HTML stays text.
export function smallMarks(reader) {
  reader.inline.ruler.before("html_inline", "small_marks", (state, silent) => {
    MARK.lastIndex = state.pos;
    const found = MARK.exec(state.src);
    if (!found) return false;
    if (!silent) pushMark(state, found);
    state.pos = MARK.lastIndex;
    return true;
  });
}

function pushMark(state, [written, line, closing, name]) {
  if (line) {
    state.push("hardbreak", "br", 0);
    return;
  }
  const tag = name.toLowerCase();
  // Without nesting, which markdown-it takes for balanced.
  Object.assign(state.push("small_mark", tag, 0), { markup: written, meta: { turn: closing ? -1 : 1 } });
}

// A markdown-it plugin: an item that begins with [ ] or [x] has a box instead.
export function taskItems(reader) {
  reader.core.ruler.after("inline", "task_items", ({ tokens, Token }) => {
    tokens.forEach((token, index) => {
      const [item, , line] = tokens.slice(index, index + 3);
      const box = item.type === "list_item_open" && line?.type === "inline" && BOX.exec(line.content);
      if (!box || line.children[0]?.type !== "text") return;
      item.meta = { task: true };
      line.children[0].content = line.children[0].content.slice(box[0].length);
      const shown = new Token("task", "input", 0);
      shown.meta = { done: box[1] !== " " };
      line.children.unshift(shown);
    });
  });
}
