// The chat page: state, and what the controls do to it.
import { ApiError, chat, model } from "./api.js";
import { button, byId } from "./dom.js";
import { addMessage, drawLog, follow, readsAlong, wireScroll } from "./log.js";
import { drawMeter } from "./meter.js";
import { openSettings, paint, settingsOf, wireSettings } from "./settings.js";
import { drawList, toggleDrawer, wireDrawer } from "./sidebar.js";
import { newConversation, store, wire } from "./store.js";
import { Turn } from "./turn.js";

const TICK = 500; // ms between looks at an answer of which nothing arrives: its seconds go on

// `answering` is the one stream that may run: {conversation, turn, abort}.
const state = { current: store.conversations[0] ?? null, answering: null, window: null };

function redraw() {
  drawList(store.conversations, state.current, { open: show, remove: forget });
  drawLog(state.current?.messages ?? [], actions);
  byId("title").textContent = state.current?.title ?? "Maple";
  document.title = state.current ? `${state.current.title} · Maple` : "Maple";
  drawMeter(state.current?.messages, state.window);
}

function say(text, ...controls) { byId("status").replaceChildren(text, ...controls); }

function keep(conversation) {
  if (!store.save(conversation)) say("This browser’s space is full: delete a conversation to keep the new ones.");
}

function show(conversation) {
  state.answering?.abort.abort();
  state.current = conversation;
  toggleDrawer(false);
  redraw();
  byId("prompt").focus();
}

function forget(conversation) {
  if (conversation === state.answering?.conversation) state.answering.abort.abort();
  store.remove(conversation);
  if (conversation === state.current) show(store.conversations[0] ?? null);
  else redraw();
  say(`Deleted “${conversation.title}”. `, button("Undo", () => {
    keep(store.add(conversation));
    show(conversation);
    say("");
  }));
}

// What the controls of messages do.
const actions = {
  ask,
  pending(call) {
    const messages = state.current.messages;
    const asked = messages.findLastIndex((message) => message.role === "assistant");
    return messages[asked]?.tool_calls?.some((other) => other?.id === call.id)
      && messages.slice(asked + 1).every((message) => message.role === "tool" && message.tool_call_id !== call.id);
  },
  answer(call, content) {
    if (state.answering) return;
    const messages = state.current.messages;
    messages.push({ role: "tool", tool_call_id: call.id, content });
    keep(state.current);
    redraw();
    const asked = messages.findLast((message) => message.role === "assistant");
    const open = asked.tool_calls.find((other) => actions.pending(other));
    if (open) byId(`answer-${open.id}`).focus();
    else generate(state.current);
  },
  resend(message, text) {
    if (state.answering) return;
    cutBefore(message);
    ask(text);
  },
  regenerate(message) {
    if (state.answering) return;
    cutBefore(message);
    generate(state.current);
  },
};

function cutBefore(message) {
  state.current.messages.splice(state.current.messages.indexOf(message));
  redraw();
}

function ask(text) {
  if (state.answering || !text.trim()) return;
  state.current ??= store.add(newConversation(text));
  state.current.messages.push({ role: "user", content: text });
  keep(state.current);
  redraw();
  generate(state.current);
}

function requestBody(conversation) {
  const { system, options, tools } = settingsOf(store.settings);
  const messages = conversation.messages.filter((message) => !message.error || message.content).map(wire);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const thinking = { chat_template_kwargs: { enable_thinking: store.settings.thinking } };
  return { messages, ...options, ...(tools ? { tools } : {}), ...thinking };
}

async function generate(conversation) {
  const turn = new Turn();
  const abort = new AbortController();
  const answering = { conversation, turn, abort };
  const view = addMessage(turn.message);
  state.answering = answering;
  busy(true);
  view.grow(turn);
  follow(true);
  const timer = setInterval(() => grow(turn, view), TICK);
  try {
    await stream(requestBody(conversation), turn, view, abort.signal);
  } catch (error) {
    if (!abort.signal.aborted) turn.message.error = explain(error, turn);
  }
  clearInterval(timer);
  finish(answering, view);
}

async function stream(body, turn, view, signal) {
  let due = false;
  for await (const chunk of chat(body, { key: store.key, signal })) {
    turn.take(chunk);
    if (due) continue;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      grow(turn, view);
    });
  }
}

function grow(turn, view) {
  if (state.answering?.turn !== turn) return;
  const along = readsAlong();
  view.grow(turn);
  if (along) follow(true);
}

function finish(answering, view) {
  const { conversation, turn, abort } = answering;
  const along = readsAlong();
  const message = turn.end(abort.signal.aborted);
  if (!conversation.messages.includes(message)) conversation.messages.push(message);
  if (state.answering === answering) state.answering = null;
  busy(false);
  say(outcome(message, abort.signal.aborted));
  keep(conversation);
  if (state.current !== conversation) return;
  view.settle(actions);
  drawMeter(conversation.messages, state.window);
  if (along) follow(true);
}

function outcome(message, stopped) {
  if (message.error) return "The answer failed.";
  if (stopped) return "Stopped.";
  return message.tool_calls.length ? "Maple asks for a tool: give its result." : "The answer is complete.";
}

function explain(error, turn) {
  if (error instanceof ApiError) return error.message;
  return turn?.first ? "The connection ended before the answer did." : "The server cannot be reached.";
}

// A control that goes away hands its focus on; nobody else's is touched.
function busy(on) {
  const [shown, gone] = on ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
  const focused = document.activeElement === gone;
  shown.hidden = false;
  gone.hidden = true;
  if (focused) (on ? shown : byId("prompt")).focus();
  byId("log").setAttribute("aria-busy", String(on));
  if (on) say("Maple is answering…");
}

async function meet() {
  try {
    const card = await model(store.key);
    byId("model").textContent = card.id;
    byId("model").hidden = false;
    state.window = card.max_model_len;
    say(state.window === null ? "The model is loading…" : "");
    if (state.window === null) setTimeout(meet, 2000);
  } catch (error) {
    say(`${explain(error)} `, ...(error.status === 401 ? [button("Enter a key", () => openSettings(store))] : []));
  }
  drawMeter(state.current?.messages, state.window);
}

function send(event) {
  event.preventDefault();
  const text = byId("prompt").value;
  if (state.answering || !text.trim()) return;
  byId("prompt").value = "";
  ask(text);
}

byId("composer").addEventListener("submit", send);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
byId("stop").addEventListener("click", () => state.answering?.abort.abort());
byId("new").addEventListener("click", () => show(null));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("settings").open) state.answering?.abort.abort();
  // Who begins to type means the message.
  const types = event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey;
  if (types && document.activeElement === document.body) byId("prompt").focus();
});
byId("thinking").checked = store.settings.thinking;
byId("thinking").addEventListener("change", () => {
  store.settings.thinking = byId("thinking").checked;
  store.saveSettings();
});
// A page that is left mid-answer keeps what it has.
addEventListener("pagehide", () => {
  if (!state.answering) return;
  const { conversation, turn, abort } = state.answering;
  abort.abort();
  conversation.messages.push(turn.end(true));
  store.save(conversation);
});
addEventListener("storage", () => {
  store.refresh(state.current);
  drawList(store.conversations, state.current, { open: show, remove: forget });
});
wireDrawer();
wireScroll();
wireSettings(store, () => { store.saveSettings(); paint(store.settings.theme); meet(); });
paint(store.settings.theme);
redraw();
meet();
