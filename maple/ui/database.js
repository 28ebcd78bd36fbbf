// Conversations in the browser's database. Tabs tell one another what they have changed.
import { absorb } from "./tree.js";

const NAME = "maple";
const TABLE = "conversations";
const KEPT_REMOVED = 7 * 24 * 3600 * 1000; // ms for which a deleted conversation can still be brought back
const channel = new BroadcastChannel(NAME);
let opened = null;

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function open() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  const database = await promised(request);
  database.onversionchange = () => { // the site's data is being cleared, say
    database.close();
    opened = null;
  };
  return database;
}

// Runs `work(table)`, and ends when all of it is on the disk. Raises where the browser has no room, or no database.
async function transaction(mode, work) {
  opened ??= open();
  let running;
  try {
    running = (await opened).transaction(TABLE, mode, { durability: "strict" });
  } catch (error) {
    opened = null;
    throw error;
  }
  const done = new Promise((resolve, reject) => {
    running.oncomplete = resolve;
    running.onabort = () => reject(running.error ?? new DOMException("The browser has no room.", "QuotaExceededError"));
  });
  const [result] = await Promise.all([work(running.objectStore(TABLE)), done]);
  return result;
}

// All that are not removed; what was removed long ago goes for good.
export async function readAll() {
  const found = await transaction("readonly", (table) => promised(table.getAll()));
  const old = found.filter(({ removed, updated }) => removed && updated < Date.now() - KEPT_REMOVED);
  if (old.length) await transaction("readwrite", async (table) => { for (const { id } of old) table.delete(id); });
  return found.filter(({ removed }) => !removed);
}

export async function read(id) {
  return transaction("readonly", (table) => promised(table.get(id)));
}

// Writes a conversation over what is there, after taking up what another tab has added to it.
export async function write(conversation) {
  await transaction("readwrite", async (table) => {
    const kept = await promised(table.get(conversation.id));
    if (kept) absorb(conversation, kept);
    table.put(conversation);
  });
  channel.postMessage(conversation.id);
}

// `changed(id)` is called when another tab has written a conversation.
export function listen(changed) {
  channel.addEventListener("message", ({ data }) => changed(data));
}
