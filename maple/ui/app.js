// The chat page: its parts are put together here.
import { actions, ask, open, show } from "./actions.js";
import { allAnswers, answerOf } from "./answers.js";
import { take, wireComposer } from "./composer.js";
import { desk, drawSide, keep, notice, redraw } from "./desk.js";
import { byId } from "./dom.js";
import { wireScroll } from "./log.js";
import { meet } from "./server.js";
import { paint, wireSettings } from "./settings.js";
import { search, wireDrawer } from "./sidebar.js";
import { store } from "./store.js";
import { asJson, asMarkdown, download, fileName, readFile } from "./transfer.js";

function send() {
  const taken = take();
  if (taken) ask(taken.content, taken.files);
}

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      search();
      return;
    }
    if (event.key === "Escape" && !byId("settings").open) answerOf(desk.current)?.abort.abort();
    // Who begins to type means the message.
    const types = event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (types && document.activeElement === document.body) byId("prompt").focus();
  });
}

function wireFiles() {
  byId("export-markdown").addEventListener("click", () => {
    if (desk.current) download(fileName(desk.current, "md"), "text/markdown", asMarkdown(desk.current));
  });
  byId("export-json").addEventListener("click", () => download("maple-conversations.json", "application/json", asJson(store.conversations)));
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async () => {
    const [file] = byId("import-file").files;
    try {
      const found = await readFile(file);
      for (const conversation of found) await keep(store.add(conversation));
      show(found[0] ?? desk.current);
    } catch (error) {
      notice(error.message);
    }
    byId("import-file").value = "";
  });
}

// What another tab has done to a conversation.
function heard(conversation) {
  if (conversation === desk.current && conversation.removed) show(store.conversations[0] ?? null);
  else if (conversation === desk.current) redraw();
  else drawSide();
}

// A page that is left mid-answer keeps what it has.
function rescue() {
  const answers = allAnswers();
  for (const { node, turn, abort } of answers) {
    abort.abort();
    turn.end(true);
    node.revision += 1;
  }
  store.rescue(answers.map(({ conversation }) => conversation));
}

async function begin() {
  paint(store.settings.theme);
  desk.actions = actions;
  byId("thinking").checked = store.settings.thinking;
  byId("thinking").addEventListener("change", () => {
    store.settings.thinking = byId("thinking").checked;
    store.saveSettings();
  });
  byId("stop").addEventListener("click", () => answerOf(desk.current)?.abort.abort());
  byId("new").addEventListener("click", () => open(null));
  byId("notice-close").addEventListener("click", () => notice(""));
  wireComposer({ send, refused: notice });
  wireDrawer(drawSide);
  wireFiles();
  wireKeys();
  wireScroll();
  wireSettings(store, {
    current: () => desk.current,
    changed() {
      store.saveSettings();
      paint(store.settings.theme);
      if (desk.current) keep(desk.current);
      meet();
    },
  });
  addEventListener("pagehide", rescue);
  if (!(await store.load())) notice("This browser keeps nothing for this page: what you write here is gone when you leave it.");
  store.listen(heard);
  desk.current = store.conversations[0] ?? null;
  show(desk.current);
  document.documentElement.dataset.ready = "true";
  meet();
}

begin();
