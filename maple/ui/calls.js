// Tool calls: what the model wants, and a form to answer for the tool by hand.
import { button, copy, element } from "./dom.js";

// `form` is null while the call cannot be answered: during a stream, or when it has been.
// {draft, keep(text), send(text)}: what was typed outlives a reload.
export function callView(call, form) {
  const { name, arguments: given } = call.function;
  const control = button("Copy", (event) => copy(given, event.target), { class: "quiet always" });
  return element("section", { class: "call", "aria-label": `Tool call ${name}` },
    element("div", { class: "block-head" }, element("h3", {}, "Calls ", element("code", {}, name)), control),
    element("pre", { tabindex: "0" }, pretty(given)),
    form ? answerForm(call, form) : null);
}

function answerForm(call, { draft, keep, send }) {
  const area = element("textarea", { rows: "2", id: `answer-${call.id}`, oninput: () => keep(area.value) });
  area.value = draft;
  const submit = (event) => { event.preventDefault(); send(area.value); };
  return element("form", { onsubmit: submit },
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
