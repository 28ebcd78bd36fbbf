// Conversations and settings, kept in this browser. The key is kept for this tab only.

const CONVERSATION = "maple.conversation.";
const SETTINGS = "maple.settings";
const KEY = "maple.key";
const DEFAULTS = { system: "", tools: "", theme: "auto", thinking: true };

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null; // not ours, or cut short: as if it were not there
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // the browser's space is full
  }
}

// Each under a name of its own, so that two tabs do not overwrite each other's.
function conversations() {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(CONVERSATION))
    .map(read)
    .filter((conversation) => Array.isArray(conversation?.messages))
    .sort((one, other) => other.updated - one.updated);
}

export const store = {
  conversations: conversations(),
  settings: { ...DEFAULTS, ...read(SETTINGS) },
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  set key(value) { sessionStorage.setItem(KEY, value); },

  // Both answer false when the space is full: nothing shown is lost, but it would not survive a reload.
  saveSettings() { return write(SETTINGS, this.settings); },
  save(conversation) {
    if (!this.conversations.includes(conversation)) return true; // deleted in the meantime
    conversation.updated = Date.now();
    return write(CONVERSATION + conversation.id, conversation);
  },

  add(conversation) {
    this.conversations = [conversation, ...this.conversations];
    return conversation;
  },

  remove(conversation) {
    this.conversations = this.conversations.filter((other) => other !== conversation);
    localStorage.removeItem(CONVERSATION + conversation.id);
  },

  // What another tab has done; `open` is shown here and stays as it is.
  refresh(open) {
    const others = conversations().filter((other) => other.id !== open?.id);
    this.conversations = open ? [open, ...others] : others;
  },
};

export function newConversation(text) {
  // randomUUID is there for secure pages only.
  const id = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  return { id, title: titleOf(text), messages: [], updated: Date.now() };
}

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 48 ? `${line.slice(0, 47)}…` : line;
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
