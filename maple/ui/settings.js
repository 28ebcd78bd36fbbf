// The settings dialog: what it shows, what it keeps, and what of it goes into a request.
import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const FIELDS = ["system", "tools", "theme", ...NUMBERS];
const SAMPLE_TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city, now.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

export function settingsOf(settings) {
  const given = NUMBERS.filter((name) => (settings[name] ?? "") !== "");
  const options = Object.fromEntries(given.map((name) => [name, Number(settings[name])]));
  const tools = settings.tools?.trim() ? JSON.parse(settings.tools) : null;
  return { system: settings.system ?? "", options, tools };
}

export function paint(theme) {
  document.documentElement.dataset.theme = theme ?? "auto";
}

export function openSettings(store) {
  for (const name of FIELDS) byId(name).value = store.settings[name] ?? "";
  byId("key").value = store.key;
  byId("tools-error").textContent = "";
  byId("settings").showModal();
}

export function wireSettings(store, changed) {
  byId("open-settings").addEventListener("click", () => openSettings(store));
  byId("cancel-settings").addEventListener("click", () => byId("settings").close());
  byId("sample-tool").addEventListener("click", () => { byId("tools").value = JSON.stringify([SAMPLE_TOOL], null, 2); });
  byId("settings-form").addEventListener("submit", (event) => {
    const fault = complaint(byId("tools").value);
    byId("tools-error").textContent = fault;
    if (fault) {
      event.preventDefault();
      byId("tools").focus();
      return;
    }
    for (const name of FIELDS) store.settings[name] = byId(name).value;
    store.key = byId("key").value.trim();
    changed();
  });
}

function complaint(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Give a JSON list of tools.";
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
}
