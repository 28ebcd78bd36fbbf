// Messages as elements. Everything from the model or the user goes in as text nodes.
import { button, copy, element } from "./dom.js";
import { render } from "./markdown.js";

export function messageView(message, actions) {
  const view = element("article", { class: `message ${message.role}`, "aria-label": who(message) });
  update(view, message, actions);
  return view;
}

export function update(view, message, actions) {
  const open = view.querySelector("details.reasoning")?.open;
  view.replaceChildren(
    element("p", { class: "who" }, who(message)),
    ...(message.reasoning_content ? [reasoning(message, open ?? false)] : []),
    body(message),
    ...(message.tool_calls ?? []).filter(Boolean).map((call) => callView(call, actions)),
    ...(message.error ? [element("p", { class: "error", role: "alert" }, message.error)] : []),
    ...(actions ? [controls(message, actions)] : []),
  );
}

function who(message) {
  return { user: "You", assistant: "Maple", tool: "Tool result" }[message.role] ?? message.role;
}

function body(message) {
  const node = element("div", { class: "body" });
  if (message.role === "assistant") node.append(render(message.content ?? ""));
  else node.append(message.content ?? "");
  return node;
}

function reasoning(message, open) {
  const words = message.reasoning_content.trim().split(/\s+/).length;
  const done = message.thoughtSeconds !== undefined;
  const label = done ? `Thought for ${message.thoughtSeconds.toFixed(1)} s · ${words} words` : `Thinking · ${words} words`;
  const summary = element("summary", done ? {} : { class: "thinking" }, label);
  return element("details", { class: "reasoning", open }, summary, element("div", { class: "text" }, message.reasoning_content));
}

function callView(call, actions) {
  const box = element("section", { class: "call", "aria-label": `Tool call ${call.function.name}` },
    element("h3", {}, "Calls ", element("code", {}, call.function.name)),
    element("pre", { tabindex: "0" }, pretty(call.function.arguments)));
  if (actions?.pending(call)) box.append(answerForm(call, actions));
  return box;
}

function answerForm(call, actions) {
  const area = element("textarea", { rows: "2", id: `answer-${call.id}` });
  const send = (event) => { event.preventDefault(); actions.answer(call, area.value); };
  return element("form", { onsubmit: send },
    element("label", { for: area.id }, `Result of ${call.function.name}, as the tool would give it`), area,
    element("div", { class: "row end" }, element("button", { type: "submit", class: "primary" }, "Send result")));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function controls(message, actions) {
  const row = element("div", { class: "tools-row" });
  const text = message.content ?? "";
  if (text) row.append(button("Copy", (event) => copy(text, event.target)));
  if (message.role === "user") row.append(button("Edit", () => actions.edit(message)));
  if (message.role === "assistant") row.append(button("Regenerate", () => actions.regenerate(message)));
  const facts = [
    message.stopped ? "stopped" : message.finish === "length" ? "cut at the limit" : null,
    message.usage ? `${message.usage.completion_tokens} tokens` : null,
    message.rate ? `${message.rate.toFixed(1)} tokens/s` : null,
  ].filter(Boolean);
  if (facts.length) row.append(element("span", { class: "rate" }, facts.join(" · ")));
  return row;
}
