// What is on the page: the conversation that is shown, what is known of the server, and the drawing of both.
import { allAnswers, answerOf } from "./answers.js";
import { button, byId } from "./dom.js";
import { invitation } from "./invitation.js";
import { drawLog, follow } from "./log.js";
import { drawMeter } from "./meter.js";
import { drawList } from "./sidebar.js";
import { store } from "./store.js";
import { path } from "./tree.js";

// `actions` are what the controls of messages and of the list do; app.js puts them here.
export const desk = { current: null, window: null, properties: null, actions: null };

// For assistive technology: what has happened.
export function say(text) { byId("status").textContent = text; }

// For everybody: what should be known, or can be done about what has happened. Without a text it goes away.
export function notice(text, ...controls) {
  byId("notice").hidden = !text;
  byId("notice-text").replaceChildren(text, ...controls);
}

export function undoable(text, undo) {
  notice(`${text} `, button("Undo", () => { notice(""); undo(); }));
}

export async function keep(conversation) {
  if (!(await store.save(conversation))) {
    notice("This browser cannot keep more: export or delete a conversation to keep the new ones.");
  }
}

export function drawSide() {
  drawList(store.conversations, desk.current, { answers: answerOf, ...desk.actions.list });
}

export function redraw({ toEnd = false } = {}) {
  const { current, actions } = desk;
  const entries = current ? path(current) : [];
  const answer = answerOf(current);
  const idle = invitation(desk.properties, actions.begin);
  const along = drawLog(entries, { answer, queued: current?.queue ?? [], idle, actions });
  if (toEnd || along) follow();
  drawSide();
  byId("title").textContent = current?.title ?? "Maple";
  document.title = current ? `${current.title} · Maple` : "Maple";
  drawMeter(entries.map(({ message }) => message), desk.window);
  drawStop(Boolean(answer));
}

// A control that goes away hands its focus on; nobody else's is touched.
function drawStop(on) {
  const focused = document.activeElement === byId("stop");
  byId("stop").hidden = !on;
  if (focused && !on) byId("prompt").focus();
  if (on && byId("status").textContent === "") say("Maple is answering…");
}

export function anyAnswers() { return allAnswers().length > 0; }
