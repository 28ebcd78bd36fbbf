// The answers that are coming in: at most one a conversation, whichever conversation is shown.
import { ApiError, chat, loading } from "./api.js";
import { Turn } from "./turn.js";

const TICK = 500; // ms between looks at an answer of which nothing arrives: its seconds go on
const PATIENCE = 5; // seconds at most between two tries at a server that takes no question yet
const TEMPORARY = new Set(["model_loading", "engine_overloaded"]);
const running = new Map();

export function answerOf(conversation) { return running.get(conversation?.id) ?? null; }
export function allAnswers() { return [...running.values()]; }

// Streams the answer to `body` into a node's message. `grown(answer)` is called when there is more to see,
// `ended(answer)` once, whatever happens: what went wrong is the message's `error`.
export async function generate(conversation, node, body, { key, grown, ended }) {
  const answer = { conversation, node, turn: new Turn(node.message), abort: new AbortController() };
  running.set(conversation.id, answer);
  grown(answer);
  const timer = setInterval(() => grown(answer), TICK);
  try {
    await patiently(answer, () => stream(answer, body, key, grown));
  } catch (error) {
    if (!stopped(answer)) Object.assign(node.message, { error: explain(error, answer.turn), refused: error.status === 401 });
  }
  clearInterval(timer);
  answer.turn.end(stopped(answer));
  node.revision += 1;
  running.delete(conversation.id);
  ended(answer);
}

export function stopped(answer) { return answer.abort.signal.aborted; }

async function stream(answer, body, key, grown) {
  let due = false;
  for await (const chunk of chat(body, { key, signal: answer.abort.signal })) {
    answer.turn.take(chunk);
    if (due) continue;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (answerOf(answer.conversation) === answer) grown(answer); // else it has ended meanwhile
    });
  }
}

// Tries again for as long as the server says that it will take the question later.
async function patiently(answer, work) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!TEMPORARY.has(error.code) || answer.turn.first || stopped(answer)) throw error;
      answer.turn.waiting = { code: error.code, loading: error.code === "model_loading" ? await loading() : null };
      await pause(Math.min(error.seconds ?? 1, PATIENCE) * 1000, answer.abort.signal);
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

export function explain(error, turn) {
  if (error instanceof ApiError) return error.message;
  return turn?.first ? "The connection ended before the answer did." : "The server cannot be reached.";
}
