// Messages as elements. Everything from the model or the user goes in as text nodes.
import { callView } from "./calls.js";
import { button, copy, counted, element } from "./dom.js";
import { draw } from "./markdown.js";
import { Thoughts } from "./thoughts.js";

const WHO = { user: "You", assistant: "Maple", tool: "Tool result" };

// One message. Its parts are made once and redrawn in place, so that a stream takes nobody's focus or selection.
export class MessageView {
  constructor(entry, actions) {
    const { role } = entry.message;
    const who = WHO[role] ?? role;
    this.entry = entry;
    this.actions = actions;
    this.thoughts = null;
    this.body = element("div", { class: "body", dir: role === "assistant" ? null : "auto" });
    this.calls = element("div", { class: "calls" });
    this.cut = element("div", { class: "cut" });
    this.foot = element("div", { class: "foot" });
    this.name = element("h2", { class: "who" }, who);
    this.root = element("article", { class: `message ${role}`, "aria-label": who },
      this.name, this.body, this.calls, this.cut, this.foot);
  }

  get message() { return this.entry.message; }

  // While the answer comes in.
  grow(turn) {
    this.root.classList.add("growing");
    this.#drawThoughts(turn.thinking ? turn : null, turn);
    this.#drawBody();
    this.#drawCalls(false);
    this.cut.replaceChildren();
    this.foot.replaceChildren(fact(progress(turn)));
  }

  // When it is complete, or was read from the store.
  settle() {
    this.root.classList.remove("growing");
    this.#drawThoughts(null, this.message);
    this.#drawBody();
    this.#drawCalls(true);
    this.cut.replaceChildren(...cutShort(this.entry, this.actions));
    this.foot.replaceChildren(...this.#controls());
  }

  #drawThoughts(live, times) {
    if (!this.message.reasoning_content) return;
    if (!this.thoughts) {
      this.thoughts = new Thoughts(() => this.actions.answerNow(this.entry));
      this.name.after(this.thoughts.node);
    }
    this.thoughts.draw({ ...this.message, thoughtSeconds: times.thoughtSeconds ?? 0 }, live);
  }

  #drawBody() {
    const { role, content, error, files = [] } = this.message;
    if (role === "assistant") draw(this.body, content ?? "");
    else this.body.replaceChildren(...files.map(fileView), content ?? "");
    if (error) this.body.append(element("p", { class: "error", role: "alert" }, error));
  }

  #drawCalls(settled) {
    const calls = (this.message.tool_calls ?? []).filter(Boolean);
    this.calls.replaceChildren(...calls.map((call) => callView(call, settled ? this.actions.answering(this.entry, call) : null)));
  }

  #controls() {
    const { role, content } = this.message;
    const [facts, title] = factsOf(this.message);
    return [
      ...this.#versions(),
      content ? button("Copy", (event) => copy(content, event.target), { class: "quiet always" }) : null,
      role === "user" ? button("Edit", () => this.#edit(), { class: "quiet" }) : null,
      role === "user" && this.actions.isUnanswered(this.entry) ? button("Answer", () => this.actions.answer(), { class: "quiet" }) : null,
      role === "assistant" ? button("Regenerate", () => this.actions.regenerate(this.entry), { class: "quiet" }) : null,
      button("Delete", () => this.actions.remove(this.entry), { class: "quiet", "aria-label": "Delete this message" }),
      facts ? fact(facts, title) : null,
    ].filter(Boolean);
  }

  // ‹ 2/3 › where there is more than one.
  #versions() {
    const all = this.actions.versions(this.entry);
    if (all.length < 2) return [];
    const at = all.indexOf(this.entry);
    const step = (label, by, name) => button(label, () => this.actions.choose(all[at + by]),
      { class: "quiet step", "aria-label": name, disabled: !all[at + by] });
    return [step("‹", -1, "The version before"), element("span", { class: "versions" }, `${at + 1}/${all.length}`),
      step("›", 1, "The next version")];
  }

  // In place: the new text begins a branch, and the old one stays on its own.
  #edit() {
    const area = element("textarea", { rows: "3", "aria-label": "Edit the message" });
    const leave = () => { this.settle(); this.foot.querySelector("button")?.focus(); };
    const send = (event) => {
      event.preventDefault();
      if (area.value.trim()) this.actions.resend(this.entry, area.value);
    };
    const keys = (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    };
    area.value = this.message.content;
    this.body.replaceChildren(element("form", { onsubmit: send, onkeydown: keys }, area,
      element("div", { class: "row end" }, button("Cancel", leave),
        element("button", { type: "submit", class: "primary" }, "Send again"))));
    this.foot.replaceChildren();
    area.focus();
  }
}

// What an answer that did not come to its end says of it, and the ways on.
function cutShort(entry, actions) {
  const { finish, stopped, content, reasoning_content: reasoning, tool_calls: calls } = entry.message;
  if (!(finish === "length" || stopped) || calls?.length || !(content || reasoning) || !actions.isLast(entry)) return [];
  const inThoughts = !content;
  const where = inThoughts ? "while it was thinking" : "before its end";
  const go = (label, way) => button(label, () => actions.goOn(entry, way));
  return [
    element("p", {}, stopped ? `Stopped ${where}.` : `The limit of tokens cut this ${where}.`),
    go("Continue", "on"),
    inThoughts ? go("Answer now", "answer") : null,
    stopped ? null : go("More tokens", "more"),
    inThoughts ? go("Without thinking", "plain") : null,
  ].filter(Boolean);
}

function factsOf({ stopped, finish, usage, rate, wait }) {
  const facts = [
    stopped ? "stopped" : finish === "length" ? "cut at the limit" : null,
    usage ? counted(usage.completion_tokens, "token") : null,
    rate ? `${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s` : null,
  ].filter(Boolean).join(" · ");
  return [facts, wait === undefined ? null : `First token after ${wait.toFixed(2)} s`];
}

function progress(turn) {
  if (turn.first) return turn.pace ? `about ${turn.pace.toFixed(0)} tokens/s` : "";
  if (turn.waiting) return waitingFor(turn.waiting);
  if (turn.waited <= 1) return "";
  const { state, position, total, cached, processed } = turn.progress ?? {};
  const seconds = `${turn.waited.toFixed(0)} s`;
  if (state === "queued") return `place ${position} in the queue · ${seconds}`;
  if (state === "prefill" && processed < total) {
    return `reading the prompt · ${Math.floor((100 * processed) / total)} % of ${counted(total, "token")}, ${cached.toLocaleString("en")} known · ${seconds}`;
  }
  return `waiting · ${seconds}`;
}

function waitingFor({ code, loading }) {
  if (code !== "model_loading") return "the server is busy: your question is kept, and sent as soon as it takes one";
  const share = loading?.total ? ` · ${loading.phase} ${Math.floor((100 * loading.done) / loading.total)} %` : "";
  return `the model is loading${share}: your question is kept, and sent when it is there`;
}

export function fileView({ name, text }) {
  return element("details", { class: "file" },
    element("summary", {}, name, element("span", { class: "muted" }, ` ${counted(text.length, "character")}`)),
    element("pre", { tabindex: "0" }, text));
}

function fact(text, title = null) {
  return element("span", { class: "rate", title }, text);
}
