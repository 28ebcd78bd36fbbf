// The list of conversations, and the drawer it becomes on a narrow screen.
import { button, byId, element } from "./dom.js";

export function drawList(conversations, current, { open, remove }) {
  byId("conversations").replaceChildren(...conversations.map((conversation) => {
    const { title } = conversation;
    const shown = conversation === current ? "true" : null;
    return element("li", { class: shown ? "current" : null },
      button(title, () => open(conversation), { class: "open", title, "aria-current": shown }),
      button("×", () => remove(conversation), { class: "quiet remove", "aria-label": `Delete ${title}` }));
  }));
}

export function wireDrawer() {
  byId("menu").addEventListener("click", () => toggleDrawer(!byId("sidebar").classList.contains("open")));
  byId("sidebar").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !byId("sidebar").classList.contains("open")) return;
    event.stopPropagation();
    toggleDrawer(false);
    byId("menu").focus();
  });
}

export function toggleDrawer(on) {
  byId("sidebar").classList.toggle("open", on);
  byId("menu").setAttribute("aria-expanded", String(on));
}
