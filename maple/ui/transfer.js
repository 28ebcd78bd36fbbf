// Conversations as files: JSON that can be read back with every branch, and Markdown for people.
import { element } from "./dom.js";
import { freshId, path } from "./tree.js";

const FORMAT = "maple-conversations";
const KNOWN = new Set(["role", "content", "reasoning_content", "tool_calls", "tool_call_id", "files", "finish", "stopped", "thoughtSeconds"]);
const LARGEST = 50_000_000; // bytes of a file that is read back

export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export function fileName(conversation, ending) {
  return `${conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.${ending}`;
}

export function asJson(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

export function asMarkdown(conversation) {
  const parts = path(conversation).map(({ message }) => [
    `## ${{ user: "You", assistant: "Maple", tool: "Tool result" }[message.role] ?? message.role}`,
    message.reasoning_content ? `<details><summary>Thoughts</summary>\n\n${message.reasoning_content.trim()}\n\n</details>` : null,
    ...(message.files ?? []).map(({ name, text }) => `**${name}**\n\n${text.replace(/^/gm, "    ")}`),
    message.content,
    ...(message.tool_calls ?? []).filter(Boolean).map((call) => `Calls \`${call.function.name}\` with \`${call.function.arguments}\``),
  ].filter(Boolean).join("\n\n"));
  return `# ${conversation.title}\n\n${parts.join("\n\n")}\n`;
}

// The conversations of a file that was written here. Raises with words for the reader where it is none.
export async function readFile(file) {
  if (file.size > LARGEST) throw new Error("The file is too large.");
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) throw new Error("The file holds no conversations of this page.");
  return found.conversations.map(checked);
}

// Under an id of its own: what is here stays as it is. Only what this page knows is taken.
function checked({ title, leaf, nodes, settings, created, updated }) {
  const own = Object.fromEntries(Object.values(nodes ?? {}).map((node) => [node?.id, nodeOf(node)]));
  if (typeof title !== "string" || !(leaf in own) || hasCircle(own)) throw damaged();
  return { id: freshId(), title, leaf, nodes: own, settings: settings ?? {}, queue: [],
    created: Number(created) || Date.now(), updated: Number(updated) || Date.now(), removed: false };
}

function damaged() { return new Error("A conversation in the file is damaged."); }

function nodeOf(node) {
  const { id, parent, created, revision, removed, message } = node ?? {};
  if (typeof id !== "string" || !isMessage(message)) throw damaged();
  const kept = Object.entries(message).filter(([name]) => KNOWN.has(name));
  return { id, parent: typeof parent === "string" ? parent : null, created: Number(created) || 0,
    revision: Number(revision) || 1, removed: Boolean(removed), message: Object.fromEntries(kept) };
}

function isMessage({ role, content, reasoning_content: thought = "", tool_calls: calls = [], files = [], thoughtSeconds = 0 } = {}) {
  return ["user", "assistant", "tool"].includes(role) && (isText(content) || content === null) && isText(thought)
    && Number.isFinite(thoughtSeconds) && Array.isArray(files) && files.every((file) => isText(file?.name) && isText(file.text))
    && Array.isArray(calls) && calls.every((call) => isText(call?.id) && isText(call.function?.name) && isText(call.function.arguments));
}

function isText(value) { return typeof value === "string"; }

// Whether some message comes, by way of its parents, after itself.
function hasCircle(nodes) {
  return Object.values(nodes).some((node) => {
    const seen = new Set();
    for (let next = node; next; next = nodes[next.parent]) {
      if (seen.has(next.id)) return true;
      seen.add(next.id);
    }
    return false;
  });
}
