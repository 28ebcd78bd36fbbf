// The settings dialog: what it shows, what it keeps, and what of it goes into a request.
import { ApiError, checkTools } from "./api.js";
import { byId } from "./dom.js";
import { PAGE_TOOLS } from "./page_tools.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const OWN = ["system", "tools", ...NUMBERS]; // of each conversation; the rest is the browser's
const SAMPLE_TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city, now.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

// {system, options, tools} as a request has them.
export function settingsOf(settings) {
  const given = NUMBERS.filter((name) => (settings[name] ?? "") !== "");
  const options = Object.fromEntries(given.map((name) => [name, Number(settings[name])]));
  const tools = [...(settings.pageTools ? PAGE_TOOLS : []), ...(settings.tools?.trim() ? JSON.parse(settings.tools) : [])];
  return { system: settings.system ?? "", options, tools };
}

export function paint(theme) {
  document.documentElement.dataset.theme = theme ?? "auto";
}

// The server's defaults, where a field is empty.
export function showDefaults(properties) {
  const { n_predict: most, ...sampling } = properties.default_generation_settings.params;
  const shown = { ...sampling, max_tokens: most, seed: "random" };
  for (const name of NUMBERS) byId(name).placeholder = shown[name] ?? "";
}

// `conversation` is null where none has begun: then the settings are those of new ones.
export function openSettings(store, conversation, { asksForKey = false } = {}) {
  const settings = conversation?.settings ?? store.settings;
  for (const name of OWN) byId(name).value = settings[name] ?? "";
  byId("page-tools").checked = Boolean(settings.pageTools);
  byId("for-new").checked = !conversation;
  byId("for-new").disabled = !conversation;
  byId("settings-of").textContent = conversation ? `For “${conversation.title}”.` : "For new conversations.";
  byId("theme").value = store.settings.theme;
  byId("key").value = store.key;
  byId("key-note").textContent = asksForKey ? (store.key ? "The server refuses this key." : "The server asks for a key.") : "";
  byId("tools-error").textContent = "";
  if (!byId("settings").open) byId("settings").showModal();
  if (asksForKey) byId("key").focus();
}

// `current()` is the conversation that is shown, `changed()` is called when the dialog has been kept.
export function wireSettings(store, { current, changed }) {
  byId("open-settings").addEventListener("click", () => openSettings(store, current()));
  byId("cancel-settings").addEventListener("click", () => byId("settings").close());
  byId("sample-tool").addEventListener("click", () => { byId("tools").value = JSON.stringify([SAMPLE_TOOL], null, 2); });
  byId("settings-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    const fault = await complaint(byId("tools").value, key);
    byId("tools-error").textContent = fault;
    if (fault) {
      byId("tools").focus();
      return;
    }
    keep(store, current());
    store.key = key;
    byId("settings").close();
    changed();
  });
}

function keep(store, conversation) {
  const given = Object.fromEntries(OWN.map((name) => [name, byId(name).value]));
  given.pageTools = byId("page-tools").checked;
  if (conversation) conversation.settings = given;
  if (byId("for-new").checked) Object.assign(store.settings, given);
  store.settings.theme = byId("theme").value;
}

// What is wrong with the tools, asked from the server too; "" if nothing is.
async function complaint(text, key) {
  if (!text.trim()) return "";
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
  if (!Array.isArray(tools)) return "Give a JSON list of tools.";
  try {
    await checkTools(tools, key);
    return "";
  } catch (error) {
    // A server that cannot be asked now says it at the question.
    return error instanceof ApiError && error.status === 400 ? error.message : "";
  }
}
