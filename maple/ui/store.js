// Conversations and settings, kept in this browser. The key is kept for this tab only.

const CONVERSATIONS = "maple.conversations";
const SETTINGS = "maple.settings";
const KEY = "maple.key";

function read(storage, name, fallback) {
  try {
    return JSON.parse(storage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

export const store = {
  conversations: read(localStorage, CONVERSATIONS, []),
  settings: read(localStorage, SETTINGS, { system: "", tools: "", theme: "auto", thinking: true }),
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  set key(value) { sessionStorage.setItem(KEY, value); },

  // Answers false when the browser's space is full: nothing shown is lost, but it would not survive a reload.
  save() {
    try {
      localStorage.setItem(CONVERSATIONS, JSON.stringify(this.conversations));
      localStorage.setItem(SETTINGS, JSON.stringify(this.settings));
      return true;
    } catch {
      return false;
    }
  },

  create() {
    const conversation = { id: crypto.randomUUID?.() ?? String(Date.now()) + Math.random(), title: "New conversation", messages: [] };
    this.conversations.unshift(conversation);
    return conversation;
  },

  remove(conversation) {
    this.conversations = this.conversations.filter((other) => other !== conversation);
  },
};

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || "New conversation";
}

// What the API wants to see of a message: our own bookkeeping stays here.
export function wire(message) {
  const { role, content, reasoning_content, tool_calls, tool_call_id } = message;
  return {
    role,
    content: content ?? null,
    ...(reasoning_content ? { reasoning_content } : {}),
    ...(tool_calls?.length ? { tool_calls } : {}),
    ...(tool_call_id ? { tool_call_id } : {}),
  };
}
