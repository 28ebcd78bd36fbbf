// The conversation as it is shown: its messages, an invitation where there are none, and where it is scrolled to.
import { button, byId, element } from "./dom.js";
import { MessageView } from "./view.js";

const NEAR = 80; // pixels from the end that still count as reading along
const IDEAS = [
  "What is 17 × 23? Explain the steps.",
  "Write a Python function that checks whether a word is a palindrome.",
  "Explain what a mixture-of-experts model is, in three sentences.",
];

export function drawLog(messages, actions) {
  const views = messages.map((message) => new MessageView(message));
  for (const view of views) view.settle(actions);
  byId("log").replaceChildren(...(views.length ? views.map((view) => view.node) : [invitation(actions)]));
  follow(true);
}

export function addMessage(message) {
  const view = new MessageView(message);
  byId("log").querySelector(".empty")?.remove();
  byId("log").append(view.node);
  return view;
}

function invitation(actions) {
  const ideas = IDEAS.map((idea) => element("li", {}, button(idea, () => actions.ask(idea))));
  return element("div", { class: "empty" },
    element("img", { src: "ui/icon.svg", alt: "", width: "56", height: "56" }),
    element("h2", {}, "What should Maple think about?"),
    element("p", { class: "muted" }, "Conversations stay in this browser."),
    element("ul", {}, ...ideas));
}

// Keeps the end in sight while the reader is there; one who has scrolled up is left alone.
export function follow(always) {
  const log = byId("log");
  if (always || readsAlong()) log.scrollTop = log.scrollHeight;
}

export function readsAlong() {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
}

export function wireScroll() {
  byId("log").addEventListener("scroll", () => { byId("newest").hidden = readsAlong(); });
  byId("newest").addEventListener("click", () => follow(true));
}
