// The settings dialog: what it shows, what it keeps, and what of it goes into a request.

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

export function settingsOf(settings) {
  const options = {};
  for (const name of NUMBERS) if (settings[name] !== undefined && settings[name] !== "") options[name] = Number(settings[name]);
  const tools = settings.tools?.trim() ? JSON.parse(settings.tools) : null;
  return { system: settings.system ?? "", options, tools };
}

function complaint(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Give a JSON list of tools.";
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
}

function paint(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function wireSettings(store, changed) {
  const dialog = $("settings");
  const fields = ["system", "tools", "theme", ...NUMBERS];
  paint(store.settings.theme ?? "auto");
  $("open-settings").addEventListener("click", () => {
    for (const name of fields) $(name).value = store.settings[name] ?? (name === "theme" ? "auto" : "");
    $("key").value = store.key;
    $("tools-error").textContent = "";
    dialog.showModal();
  });
  $("settings-form").addEventListener("submit", (event) => {
    $("tools-error").textContent = complaint($("tools").value);
    if ($("tools-error").textContent) {
      event.preventDefault();
      $("tools").focus();
      return;
    }
    for (const name of fields) store.settings[name] = $(name).value;
    store.key = $("key").value.trim();
    paint(store.settings.theme);
    changed();
  });
}
