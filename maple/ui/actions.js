// What a person can do with a conversation.
import { answerNow } from "./api.js";
import { answerOf, generate, stopped } from "./answers.js";
import { giveBack, showDraft } from "./composer.js";
import { desk, drawSide, keep, notice, redraw, say, undoable } from "./desk.js";
import { byId } from "./dom.js";
import { growView } from "./log.js";
import { answerHere } from "./page_tools.js";
import { openSettings, settingsOf } from "./settings.js";
import { toggleDrawer } from "./sidebar.js";
import { store, wire } from "./store.js";
import { append, change, choose, path, remove, versions } from "./tree.js";

const SAVED = 2000; // ms between two savings of an answer that grows
const SPARE = 16; // tokens that are left free where an answer may have all that fits

export function open(conversation) {
  show(conversation);
  byId("prompt").focus();
}

export function show(conversation) {
  desk.current = conversation;
  toggleDrawer(false);
  showDraft(conversation);
  redraw({ toEnd: true });
  bringBack(conversation);
}

// Questions that nothing will send any more go back into the box.
function bringBack(conversation) {
  if (!conversation?.queue.length || answerOf(conversation) || conversation !== desk.current) return;
  giveBack(conversation.queue.splice(0));
  redraw();
}

// `settings`: those of its own that a new conversation begins with.
export function ask(content, files = [], settings = {}) {
  if (!desk.current) {
    desk.current = store.begin(content.trim() || files[0].name);
    Object.assign(desk.current.settings, settings);
    showDraft(desk.current);
  }
  const conversation = desk.current;
  const question = { role: "user", content, ...(files.length ? { files } : {}) };
  if (answerOf(conversation)) {
    conversation.queue.push(question);
    redraw({ toEnd: true });
    keep(conversation);
    return;
  }
  append(conversation, question);
  answer(conversation);
}

function bodyOf(conversation, entries) {
  const { system, options, tools } = settingsOf(conversation.settings);
  const messages = entries.map(({ message }) => message).filter(({ error, content }) => !error || content).map(wire);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const thinking = { chat_template_kwargs: { enable_thinking: store.settings.thinking } };
  return { messages, ...options, ...(tools.length ? { tools } : {}), ...thinking };
}

// Answers the last message that is shown.
function answer(conversation, changes = {}) {
  const body = { ...bodyOf(conversation, path(conversation)), ...changes };
  run(conversation, append(conversation, { role: "assistant", content: "" }), body);
}

function run(conversation, node, body) {
  let saved = performance.now();
  notice("");
  say("Maple is answering…");
  generate(conversation, node, body, {
    key: store.key,
    grown(growing) {
      growView(growing);
      if (performance.now() - saved < SAVED) return;
      saved = performance.now();
      node.revision += 1;
      keep(conversation);
    },
    ended,
  });
  redraw({ toEnd: conversation === desk.current });
  keep(conversation);
}

function ended(answered) {
  const { conversation, node } = answered;
  const failed = Boolean(node.message.error) || stopped(answered);
  say(outcome(node.message, stopped(answered)));
  if (node.message.refused) openSettings(store, desk.current, { asksForKey: true });
  if (!failed && answerCalls(conversation, node)) return;
  const next = failed ? null : conversation.queue.shift();
  if (next) {
    append(conversation, next);
    answer(conversation);
    return;
  }
  keep(conversation);
  if (conversation !== desk.current) drawSide();
  else redraw();
  bringBack(conversation);
}

function outcome(message, wasStopped) {
  if (message.error) return "The answer failed.";
  if (wasStopped) return "Stopped.";
  return message.tool_calls.length ? "Maple asks for a tool: give its result." : "The answer is complete.";
}

// Gives the results of calls that the page answers itself. Whether the turn goes on by that.
function answerCalls(conversation, node) {
  if (!conversation.settings.pageTools) return false;
  const calls = node.message.tool_calls.filter(Boolean);
  for (const call of calls) {
    const content = answerHere(call);
    if (content !== null) append(conversation, { role: "tool", tool_call_id: call.id, content });
  }
  const goesOn = calls.length > 0 && !calls.some((call) => isOpen(conversation, node, call));
  if (goesOn) answer(conversation);
  return goesOn;
}

// Whether a call still waits for its result at the end of what is shown.
function isOpen(conversation, node, call) {
  const shown = path(conversation);
  const after = shown.slice(shown.indexOf(node) + 1).map(({ message }) => message);
  return after.every((message) => message.role === "tool" && message.tool_call_id !== call.id);
}

function giveResult(node, call, content) {
  const conversation = desk.current;
  if (answerOf(conversation)) return;
  append(conversation, { role: "tool", tool_call_id: call.id, content });
  store.keepDraft(call.id, "");
  const open = node.message.tool_calls.find((other) => other && isOpen(conversation, node, other));
  if (!open) {
    answer(conversation);
    return;
  }
  redraw();
  keep(conversation);
  byId(`answer-${open.id}`).focus();
}

// Begins a branch beside a message.
function branch(node, begin) {
  if (answerOf(desk.current)) return;
  desk.current.leaf = node.parent;
  begin(desk.current);
}

// Goes on with an answer that was cut short.
function goOn(node, way) {
  const conversation = desk.current;
  if (answerOf(conversation)) return;
  if (way === "plain") {
    branch(node, () => answer(conversation, { chat_template_kwargs: { enable_thinking: false } }));
    return;
  }
  const body = { ...bodyOf(conversation, path(conversation)), continue_final_message: true };
  if (way === "answer") body.thinking_token_budget = 1;
  if (way === "more") body.max_tokens = Math.max(1, desk.window - (node.message.usage?.total_tokens ?? 0) - SPARE);
  run(conversation, node, body);
}

async function closeThoughts(node) {
  const { turn } = answerOf(desk.current) ?? {};
  if (turn?.message !== node.message || !turn.id) return;
  try {
    await answerNow(turn.id, store.key);
  } catch (error) {
    notice(`It cannot be hurried: ${error.message}`);
  }
}

function forget(conversation) {
  answerOf(conversation)?.abort.abort();
  store.remove(conversation);
  if (conversation === desk.current) open(store.conversations[0] ?? null);
  else redraw();
  undoable(`Deleted “${conversation.title}”.`, async () => {
    await store.restore(conversation);
    open(conversation);
  });
}

function removeMessage(node) {
  const conversation = desk.current;
  const gone = remove(conversation, node);
  redraw();
  keep(conversation);
  undoable("Deleted the message.", () => {
    for (const one of gone) change(one, { removed: false });
    redraw();
    keep(conversation);
  });
}

function isLast(node) { return !answerOf(desk.current) && path(desk.current).at(-1) === node; }

export const actions = {
  begin(text, tools) {
    ask(text, [], tools ? { pageTools: true } : {});
  },
  answer: () => answer(desk.current),
  answering: (node, call) => (isOpen(desk.current, node, call)
    ? { draft: store.draft(call.id), keep: (text) => store.keepDraft(call.id, text), send: (text) => giveResult(node, call, text) }
    : null),
  answerNow: closeThoughts,
  choose(node) {
    if (answerOf(desk.current)) return;
    choose(desk.current, node);
    redraw();
    keep(desk.current);
  },
  goOn,
  isLast,
  isUnanswered: (node) => node.message.role === "user" && isLast(node),
  regenerate: (node) => branch(node, (conversation) => answer(conversation)),
  remove: removeMessage,
  resend: (node, content) => branch(node, (conversation) => {
    append(conversation, { ...node.message, content });
    answer(conversation);
  }),
  unqueue(question) {
    const { current } = desk;
    current.queue = current.queue.filter((other) => other !== question);
    giveBack([question]);
    redraw();
    keep(current);
  },
  versions: (node) => versions(desk.current, node),
  list: {
    open,
    remove: forget,
    rename(conversation, title) {
      conversation.title = title;
      redraw();
      keep(conversation);
    },
  },
};
