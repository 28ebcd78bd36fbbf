// The chat page: state, and what the controls do to it.
import { ApiError, chat, model } from "./api.js";
import { button, element } from "./dom.js";
import { settingsOf, wireSettings } from "./settings.js";
import { store, titleOf, wire } from "./store.js";
import { Turn } from "./turn.js";
import { messageView, update } from "./view.js";

const $ = (id) => document.getElementById(id);
const state = { current: store.conversations[0] ?? null, abort: null, window: null };

function drawList() {
  $("conversations").replaceChildren(...store.conversations.map((conversation) => {
    const open = button(conversation.title, () => show(conversation), { class: "open", title: conversation.title });
    const label = `Delete ${conversation.title}`;
    const remove = button("✕", () => forget(conversation), { "aria-label": label });
    return element("li", { "aria-current": conversation === state.current ? "true" : null }, open, remove);
  }));
}

function drawLog() {
  const messages = state.current?.messages ?? [];
  const nodes = messages.map((message) => messageView(message, actions));
  $("log").replaceChildren(...(nodes.length ? nodes : [element("p", { class: "empty" }, "Ask something to begin.")]));
  $("title").textContent = state.current?.title ?? "Maple";
  drawMeter();
  follow(true);
}

function drawMeter() {
  const usage = state.current?.messages.findLast((message) => message.usage)?.usage;
  const room = state.window ? ` of ${state.window.toLocaleString("en")}` : "";
  $("meter").textContent = usage ? `Context: ${usage.total_tokens.toLocaleString("en")}${room} tokens` : "";
}

function follow(always) {
  const log = $("log");
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function say(text) { $("status").textContent = text; }

function keep() {
  if (!store.save()) say("This browser's space is full: delete a conversation to keep the new ones.");
}

function show(conversation) {
  state.abort?.abort();
  state.current = conversation;
  $("sidebar").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
  drawList();
  drawLog();
  $("prompt").focus();
}

function forget(conversation) {
  if (conversation === state.current) state.abort?.abort();
  store.remove(conversation);
  keep();
  if (conversation === state.current) show(store.conversations[0] ?? null);
  else drawList();
}

const actions = {
  pending(call) {
    return !state.abort && !state.current.messages.some((message) => message.tool_call_id === call.id);
  },
  answer(call, text) {
    const messages = state.current.messages;
    const asked = messages.findIndex((message) => message.tool_calls?.some((other) => other?.id === call.id));
    let at = asked + 1;
    while (messages[at]?.role === "tool") at += 1;
    messages.splice(at, 0, { role: "tool", tool_call_id: call.id, content: text });
    keep();
    drawLog();
    const open = messages[asked].tool_calls.filter((other) => actions.pending(other));
    if (open.length) $(`answer-${open[0].id}`).focus();
    else generate();
  },
  edit(message) {
    if (state.abort) return;
    state.current.messages.splice(state.current.messages.indexOf(message));
    keep();
    drawLog();
    $("prompt").value = message.content;
    $("prompt").focus();
  },
  regenerate(message) {
    if (state.abort) return;
    state.current.messages.splice(state.current.messages.indexOf(message));
    generate();
  },
};

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value;
  if (state.abort || !text.trim()) return;
  if (!state.current) {
    state.current = store.create();
    drawList();
  }
  if (!state.current.messages.length) state.current.title = titleOf(text);
  state.current.messages.push({ role: "user", content: text });
  $("prompt").value = "";
  await generate();
}

function requestBody(conversation) {
  const { system, options, tools } = settingsOf(store.settings);
  const messages = conversation.messages.filter((message) => !message.error || message.content).map(wire);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  return { messages, ...options, ...(tools ? { tools } : {}), chat_template_kwargs: { enable_thinking: $("thinking").checked } };
}

async function generate() {
  const conversation = state.current;
  const abort = new AbortController();
  state.abort = abort;
  const turn = new Turn();
  drawList();
  drawLog();
  const view = messageView(turn.message, null);
  $("log").append(view);
  follow(true);
  busy(true);
  try {
    await stream(requestBody(conversation), turn, view, abort.signal);
  } catch (error) {
    if (error.name !== "AbortError") turn.message.error = explain(error);
  }
  conversation.messages.push(turn.end(abort.signal.aborted));
  if (state.abort === abort) state.abort = null;
  keep();
  busy(false);
  if (state.current === conversation) drawLog();
  say(turn.message.error ? "The answer failed." : abort.signal.aborted ? "Stopped." : "The answer is complete.");
}

async function stream(body, turn, view, signal) {
  let drawn = false;
  for await (const chunk of chat(body, { key: store.key, signal })) {
    turn.take(chunk);
    if (drawn) continue;
    drawn = true;
    requestAnimationFrame(() => { drawn = false; if (!signal.aborted) { update(view, turn.message, null); follow(false); } });
  }
}

function explain(error) {
  return error instanceof ApiError ? error.message : "The server cannot be reached.";
}

function busy(on) {
  $("stop").hidden = !on;
  $("send").hidden = on;
  $("log").setAttribute("aria-busy", String(on));
  if (on) say("Maple is answering…");
  else $("prompt").focus();
}

async function meet() {
  try {
    const card = await model(store.key);
    $("model").textContent = card.id;
    state.window = card.max_model_len;
    if (state.window === null) setTimeout(meet, 2000);
    say("");
  } catch (error) {
    say(explain(error));
  }
  drawMeter();
}

$("composer").addEventListener("submit", send);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
$("stop").addEventListener("click", () => state.abort?.abort());
$("new").addEventListener("click", () => show(null));
$("menu").addEventListener("click", () => {
  $("menu").setAttribute("aria-expanded", String($("sidebar").classList.toggle("open")));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) state.abort?.abort();
});
$("thinking").checked = store.settings.thinking;
$("thinking").addEventListener("change", () => { store.settings.thinking = $("thinking").checked; keep(); });
wireSettings(store, () => { keep(); meet(); });
drawList();
drawLog();
meet();
