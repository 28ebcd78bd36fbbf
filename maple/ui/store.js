// What this browser keeps: conversations in its database, settings and drafts in its small store, the key in the tab.
import * as database from "./database.js";
import { absorb, append, newConversation } from "./tree.js";

const OLD_CONVERSATION = "maple.conversation.";
const RESCUED = "maple.rescued.";
const DRAFT = "maple.draft.";
const SETTINGS = "maple.settings";
const KEY = "maple.key";
const DEFAULTS = { system: "", tools: "", theme: "auto", thinking: true };
const OF_A_CONVERSATION = ["system", "tools", "pageTools", "temperature", "top_p", "top_k", "max_tokens", "seed"];

function parsed(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null; // not ours, or cut short: as if it were not there
  }
}

function put(name, value) {
  try {
    localStorage.setItem(name, value);
    return true;
  } catch {
    return false; // the browser's space is full
  }
}

export const store = {
  conversations: [],
  unsaved: new Set(), // on their way to the database
  settings: { ...DEFAULTS, ...parsed(SETTINGS) },
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  set key(value) { sessionStorage.setItem(KEY, value); },
  saveSettings() { return put(SETTINGS, JSON.stringify(this.settings)); },

  // A conversation has settings of its own; it begins with those for new ones.
  begin(text) {
    const given = OF_A_CONVERSATION.filter((name) => this.settings[name] !== undefined);
    return this.add(newConversation(text, Object.fromEntries(given.map((name) => [name, this.settings[name]]))));
  },

  add(conversation) {
    this.conversations = [conversation, ...this.conversations.filter((other) => other.id !== conversation.id)];
    return conversation;
  },

  // Answers false where the browser cannot keep it: nothing shown is lost, but it would not survive a reload.
  async save(conversation) {
    conversation.updated = Date.now();
    this.unsaved.add(conversation);
    try {
      await database.write(conversation);
      return true;
    } catch {
      return false;
    } finally {
      this.unsaved.delete(conversation);
    }
  },

  async remove(conversation) {
    this.conversations = this.conversations.filter((other) => other !== conversation);
    conversation.removed = true;
    return this.save(conversation);
  },

  async restore(conversation) {
    conversation.removed = false;
    this.add(conversation);
    return this.save(conversation);
  },

  // What was there before, from older versions of this page too. Answers false where there is no database.
  async load() {
    try {
      this.conversations = (await database.readAll()).sort((one, other) => other.updated - one.updated);
    } catch {
      return false;
    }
    await this.takeOver();
    await this.takeRescued();
    return true;
  },

  async takeOver() {
    for (const name of Object.keys(localStorage).filter((each) => each.startsWith(OLD_CONVERSATION))) {
      const old = parsed(name);
      if (Array.isArray(old?.messages) && (await this.save(this.add(grown(old))))) localStorage.removeItem(name);
    }
  },

  // What is on its way, and `others`, when the page is left: the database takes longer than a page has that closes.
  rescue(others) {
    for (const conversation of new Set([...this.unsaved, ...others])) {
      conversation.updated = Date.now();
      put(RESCUED + conversation.id, JSON.stringify(conversation));
    }
  },

  async takeRescued(shown = () => {}) {
    for (const name of Object.keys(localStorage).filter((each) => each.startsWith(RESCUED))) {
      const rescued = parsed(name);
      localStorage.removeItem(name);
      if (!rescued) continue;
      const kept = this.conversations.find(({ id }) => id === rescued.id);
      const whole = kept ? absorb(kept, rescued) : rescued;
      if (whole.removed) await this.remove(whole);
      else await this.save(this.add(whole));
      shown(whole);
    }
  },

  // `shown(conversation)` is called for each that another tab has changed; it may be removed by then.
  listen(shown) {
    database.listen(async (id) => {
      const theirs = await database.read(id);
      if (!theirs) return;
      const mine = this.conversations.find((other) => other.id === id);
      if (mine) absorb(mine, theirs);
      if (theirs.removed) this.conversations = this.conversations.filter((other) => other.id !== id);
      else if (!mine) this.add(theirs);
      shown(mine ?? theirs);
    });
    // Another tab was closed before it had written.
    addEventListener("storage", ({ key, newValue }) => {
      if (newValue && key?.startsWith(RESCUED)) this.takeRescued(shown);
    });
  },

  // Text that was typed and not sent, by what it is for.
  draft(name) { return localStorage.getItem(DRAFT + name) ?? ""; },
  keepDraft(name, text) {
    if (text) put(DRAFT + name, text);
    else localStorage.removeItem(DRAFT + name);
  },
};

// A conversation of the page's first version, which was a list of messages.
function grown({ id, title, messages, updated }) {
  const conversation = { ...newConversation(title), id, title, updated };
  for (const message of messages) append(conversation, message);
  return conversation;
}

// What the API wants to see of a message: our own bookkeeping stays here.
export function wire(message) {
  const { role, content, reasoning_content, tool_calls, tool_call_id, files = [] } = message;
  const text = [...files.map(fenced), content].filter(Boolean).join("\n\n");
  return {
    role,
    content: text || (content ?? null),
    ...(reasoning_content ? { reasoning_content } : {}),
    ...(tool_calls?.length ? { tool_calls: tool_calls.filter(Boolean) } : {}),
    ...(tool_call_id ? { tool_call_id } : {}),
  };
}

// A file as the model reads it; the fence is longer than any in the file.
function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((fence) => fence.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}
