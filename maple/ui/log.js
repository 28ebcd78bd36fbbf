// The conversation as it is shown: its messages, an invitation where there are none, and where it is scrolled to.
import { button, byId, element } from "./dom.js";
import { fileView, MessageView } from "./view.js";

const NEAR = 80; // pixels from the end that still count as reading along
let views = new Map(); // of what is shown, by the message's id

// `queued`: questions that wait for the answer before them. `idle`: what stands there without a message.
export function drawLog(entries, { answer, queued, idle, actions }) {
  const along = readsAlong();
  views = new Map(entries.map((entry) => {
    const kept = views.get(entry.id);
    return [entry.id, kept?.entry === entry ? kept : new MessageView(entry, actions)];
  }));
  for (const view of views.values()) {
    if (view.entry === answer?.node) view.grow(answer.turn);
    else view.settle();
  }
  const shown = [...views.values()].map((view) => view.root);
  byId("log").replaceChildren(...(shown.length ? shown : [idle]), ...queued.map((question) => queuedView(question, actions)));
  byId("log").setAttribute("aria-busy", String(Boolean(answer)));
  return along;
}

// Redraws the message that an answer grows in, if it is shown.
export function growView(answer) {
  const view = views.get(answer.node.id);
  if (view?.entry !== answer.node) return;
  const along = readsAlong();
  view.grow(answer.turn);
  if (along) follow();
  else showNewest();
}

function queuedView(question, actions) {
  return element("article", { class: "message user queued", "aria-label": "You, queued" },
    element("div", { class: "body", dir: "auto" }, ...(question.files ?? []).map(fileView), question.content),
    element("div", { class: "foot" }, element("span", { class: "rate" }, "sent after the answer above"),
      button("Remove", () => actions.unqueue(question), { class: "quiet always" })));
}

export function follow() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
  showNewest();
}

export function readsAlong() {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
}

function showNewest() { byId("newest").hidden = readsAlong(); }

export function wireScroll() {
  byId("log").addEventListener("scroll", showNewest);
  new ResizeObserver(showNewest).observe(byId("log"));
  byId("newest").addEventListener("click", () => {
    follow();
    byId("prompt").focus();
  });
}
