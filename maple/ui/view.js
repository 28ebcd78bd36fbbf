// Messages as elements. Everything from the model or the user goes in as text nodes.
import { callView } from "./calls.js";
import { button, copy, counted, element } from "./dom.js";
import { draw } from "./markdown.js";
import { Thoughts } from "./thoughts.js";

const WHO = { user: "You", assistant: "Maple", tool: "Tool result" };

// One message. Its parts are made once and redrawn in place, so that a stream takes nobody's focus or selection.
export class MessageView {
  constructor(message) {
    const who = WHO[message.role] ?? message.role;
    this.message = message;
    this.thoughts = null;
    this.body = element("div", { class: "body", dir: message.role === "assistant" ? null : "auto" });
    this.calls = element("div", { class: "calls" });
    this.foot = element("div", { class: "foot" });
    this.name = element("h2", { class: "who" }, who);
    this.node = element("article", { class: `message ${message.role}`, "aria-label": who },
      this.name, this.body, this.calls, this.foot);
  }

  // While the answer comes in.
  grow(turn) {
    this.node.classList.add("growing");
    this.#drawThoughts(turn.thinking ? turn : null, turn);
    this.#drawBody();
    this.#drawCalls(null);
    this.foot.replaceChildren(fact(progress(turn)));
  }

  // When it is complete, or was read from the store.
  settle(actions) {
    this.node.classList.remove("growing");
    this.#drawThoughts(null, this.message);
    this.#drawBody();
    this.#drawCalls(actions);
    this.foot.replaceChildren(...this.#controls(actions));
  }

  #drawThoughts(live, times) {
    if (!this.message.reasoning_content) return;
    if (!this.thoughts) {
      this.thoughts = new Thoughts();
      this.name.after(this.thoughts.node);
    }
    this.thoughts.draw({ ...this.message, thoughtSeconds: times.thoughtSeconds }, live);
  }

  #drawBody() {
    const { role, content, error } = this.message;
    if (role === "assistant") draw(this.body, content ?? "");
    else this.body.textContent = content ?? "";
    if (error) this.body.append(element("p", { class: "error", role: "alert" }, error));
  }

  #drawCalls(actions) {
    const calls = (this.message.tool_calls ?? []).filter(Boolean);
    const answer = (call) => (actions?.pending(call) ? actions.answer : null);
    this.calls.replaceChildren(...calls.map((call) => callView(call, answer(call))));
  }

  #controls(actions) {
    const { role, content, stopped, finish, usage, rate, wait } = this.message;
    const facts = [
      stopped ? "stopped" : finish === "length" ? "cut at the limit" : null,
      usage ? counted(usage.completion_tokens, "token") : null,
      rate ? `${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s` : null,
    ].filter(Boolean).join(" · ");
    const title = wait === undefined ? null : `First token after ${wait.toFixed(2)} s`;
    return [
      content ? button("Copy", (event) => copy(content, event.target), { class: "quiet" }) : null,
      role === "user" ? button("Edit", () => this.#edit(actions), { class: "quiet" }) : null,
      role === "assistant" ? button("Regenerate", () => actions.regenerate(this.message), { class: "quiet" }) : null,
      facts ? fact(facts, title) : null,
    ].filter(Boolean);
  }

  // In place: what follows the message goes only when the new text is sent.
  #edit(actions) {
    const area = element("textarea", { rows: "3", "aria-label": "Edit the message" });
    const leave = () => { this.settle(actions); this.foot.querySelector("button")?.focus(); };
    const send = (event) => { event.preventDefault(); if (area.value.trim()) actions.resend(this.message, area.value); };
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

function progress(turn) {
  if (!turn.first) return turn.waited > 1 ? `waiting · ${turn.waited.toFixed(0)} s` : "";
  return turn.pace ? `about ${turn.pace.toFixed(0)} tokens/s` : "";
}

function fact(text, title = null) {
  return element("span", { class: "rate", title }, text);
}
