// "Try it": a request as the reader writes it, and what this server answers.
import { curl, sampleBody } from "./samples.js";

const KEY = "maple.key"; // the chat page's, of this tab
const MOST = 200_000; // characters of an answer that are shown

// `element` makes nodes; `needsKey` says whether the route asks for one on this server.
export function trial(element, { path, method, operation }, needsKey) {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map((found) => found[1]);
  const fields = names.map((name) => element("input", { "aria-label": `${name}, in the path`, placeholder: name, required: "" }));
  const body = sampleBody(path, operation);
  const area = body === null ? null : element("textarea", { rows: String(Math.min(12, body.split("\n").length)), "aria-label": "Body", spellcheck: "false" });
  if (area) area.value = body;
  const key = needsKey ? element("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off" }) : null;
  if (key) key.value = sessionStorage.getItem(KEY) ?? "";
  const answer = element("pre", { class: "answer", hidden: "", tabindex: "0", "aria-live": "polite" });
  const form = element("form", { class: "trial" }, ...fields, area, key, element("button", { type: "submit" }, "Send"), answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (key) sessionStorage.setItem(KEY, key.value);
    const target = fields.reduce((text, field, index) => text.replace(`{${names[index]}}`, encodeURIComponent(field.value)), path);
    send({ target, method, body: area?.value ?? null, key: key?.value, answer });
  });
  return element("details", {}, element("summary", {}, "Sample, and try it"),
    element("pre", { tabindex: "0" }, element("code", {}, curl(method, path, body, needsKey))), form);
}

async function send({ target, method, body, key, answer }) {
  const headers = { ...(body === null ? {} : { "Content-Type": "application/json" }), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  answer.hidden = false;
  answer.textContent = "…";
  try {
    const response = await fetch(target.slice(1) || ".", { method: method.toUpperCase(), headers, body });
    answer.textContent = `${response.status} ${response.statusText}\n\n`;
    await show(response, answer);
  } catch (error) {
    answer.textContent = `No answer: ${error.message}`;
  }
}

// JSON as a person reads it; all else as it comes.
async function show(response, answer) {
  if (response.headers.get("Content-Type")?.startsWith("application/json")) {
    answer.append(JSON.stringify(await response.json(), null, 2).slice(0, MOST));
    return;
  }
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    if (answer.textContent.length < MOST) answer.append(part.value);
  }
}
