// How much of the context the conversation takes.
import { byId } from "./dom.js";

// `window` is null while the server does not know it yet.
export function drawMeter(messages = [], window) {
  const used = messages.findLast((message) => message.usage)?.usage.total_tokens;
  byId("context").hidden = !(used && window);
  if (byId("context").hidden) return;
  Object.assign(byId("meter"), { max: window, high: 0.8 * window, value: used });
  byId("meter-text").textContent = `${short(used)} of ${short(window)} tokens`;
  byId("context").title = `Context in use: ${used.toLocaleString("en")} of ${window.toLocaleString("en")} tokens`;
}

function short(number) {
  return number.toLocaleString("en", { notation: "compact" });
}
