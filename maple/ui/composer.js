// The message box: what is typed, the files beside it, and the draft of each conversation.
import { button, byId, element } from "./dom.js";
import { store } from "./store.js";

const NEW = "new"; // the draft of a conversation that has not begun
const LARGEST = 1_000_000; // bytes of a file that goes into a message as text
let shown = NEW;
let files = [];

// Puts the draft of a conversation (null: a new one) into the box.
export function showDraft(conversation) {
  shown = conversation?.id ?? NEW;
  const [text, kept] = parsed(store.draft(shown));
  byId("prompt").value = text;
  files = kept;
  drawFiles();
}

function parsed(draft) {
  try {
    const { text, files: kept } = JSON.parse(draft);
    return [text, kept];
  } catch {
    return [draft, []];
  }
}

function keep() {
  const text = byId("prompt").value;
  store.keepDraft(shown, text || files.length ? JSON.stringify({ text, files }) : "");
}

// Empties the box, and answers what was in it, or null.
export function take() {
  const content = byId("prompt").value;
  if (!content.trim() && !files.length) return null;
  const taken = { content, files };
  byId("prompt").value = "";
  files = [];
  drawFiles();
  keep();
  return taken;
}

// Puts questions that were not sent back in front of what is typed.
export function giveBack(questions) {
  const texts = [...questions.map(({ content }) => content), byId("prompt").value].filter(Boolean);
  byId("prompt").value = texts.join("\n\n");
  files = [...questions.flatMap((question) => question.files ?? []), ...files];
  drawFiles();
  keep();
}

function drawFiles() {
  byId("files").replaceChildren(...files.map((file) => element("li", {}, file.name,
    button("×", () => {
      files = files.filter((other) => other !== file);
      drawFiles();
      keep();
      byId("prompt").focus();
    }, { class: "quiet", "aria-label": `Remove ${file.name}` }))));
}

// `refused(words)` is called with what cannot be attached.
async function attach(list, refused) {
  for (const file of list) {
    const text = await textOf(file);
    if (text === null) refused(`${file.name} is not attached: it is no text, or larger than a megabyte.`);
    else files = [...files, { name: file.name, text }];
  }
  drawFiles();
  keep();
  byId("prompt").focus();
}

async function textOf(file) {
  if (file.size > LARGEST) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null; // some other kind of file
  }
}

export function wireComposer({ send, refused }) {
  const coarse = matchMedia("(pointer: coarse)");
  const box = byId("prompt");
  if (coarse.matches) box.enterKeyHint = "enter";
  box.addEventListener("input", keep);
  box.addEventListener("keydown", (event) => {
    // A thumb's keyboard has no Shift+Enter: there the button sends.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || coarse.matches) return;
    event.preventDefault();
    send();
  });
  byId("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("attach").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async () => {
    await attach([...byId("file").files], refused);
    byId("file").value = "";
  });
  const given = (transfer, event) => {
    if (!transfer?.files.length) return;
    event.preventDefault();
    attach([...transfer.files], refused);
  };
  box.addEventListener("paste", (event) => given(event.clipboardData, event));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => given(event.dataTransfer, event));
}
