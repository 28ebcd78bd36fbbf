// Tool calls: what the model wants, and a form to answer for the tool by hand.
import { button, copy, element } from "./dom.js";

// `answer` is absent while the call cannot be answered: during a stream, or when it has been.
export function callView(call, answer) {
  const { name, arguments: given } = call.function;
  const control = button("Copy", (event) => copy(given, event.target), { class: "quiet" });
  return element("section", { class: "call", "aria-label": `Tool call ${name}` },
    element("div", { class: "block-head" }, element("h3", {}, "Calls ", element("code", {}, name)), control),
    element("pre", { tabindex: "0" }, pretty(given)),
    answer ? answerForm(call, answer) : null);
}

function answerForm(call, answer) {
  const area = element("textarea", { rows: "2", id: `answer-${call.id}` });
  const send = (event) => { event.preventDefault(); answer(call, area.value); };
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
