// The reasoning of a message: folded, with its length and seconds; while it comes in, its last words show.
import { button, counted, element } from "./dom.js";

const PEEK = 240; // characters

export class Thoughts {
  // `answerNow` is called when the reader has waited long enough.
  constructor(answerNow) {
    this.label = element("span");
    this.text = element("div", { class: "text", dir: "auto" });
    this.fold = element("details", { class: "reasoning" }, element("summary", {}, this.label), this.text);
    this.now = button("Answer now", answerNow, { class: "quiet now" });
    this.peek = element("p", { class: "peek", "aria-hidden": "true" });
    this.node = element("div", { class: "thoughts" }, this.now, this.fold, this.peek);
  }

  // `live`: the turn, while the reasoning is still growing.
  draw(message, live) {
    const reasoning = message.reasoning_content;
    const words = counted(reasoning.trim().split(/\s+/).length, "word");
    const tokens = message.usage?.completion_tokens_details?.reasoning_tokens;
    const seconds = (live ? live.thoughtSeconds : message.thoughtSeconds).toFixed(1);
    this.label.textContent = live
      ? `Thinking · ${seconds} s · ${words}`
      : `Thought for ${seconds} s · ${tokens ? counted(tokens, "token") : words}`;
    if (this.text.textContent !== reasoning) this.text.textContent = reasoning;
    this.peek.textContent = reasoning.slice(-PEEK);
    this.node.classList.toggle("thinking", Boolean(live));
    this.now.hidden = !live;
  }
}
