// The list of conversations with its search, and the drawer it becomes on a narrow screen.
import { button, byId, element } from "./dom.js";
import { path } from "./tree.js";

let renaming = null; // the conversation whose title is being changed

// `answers(conversation)` tells whether one is coming in.
export function drawList(conversations, current, { answers, open, remove, rename }) {
  const wanted = byId("search").value.trim().toLowerCase();
  const found = conversations.filter((conversation) => !wanted || matches(conversation, wanted));
  byId("conversations").replaceChildren(...found.map((conversation) => {
    const shown = conversation === current ? "true" : null;
    const redraw = () => drawList(conversations, current, { answers, open, remove, rename });
    return element("li", { class: shown ? "current" : null }, conversation === renaming
      ? titleForm(conversation, (title) => { renaming = null; if (title) rename(conversation, title); else redraw(); })
      : entry(conversation, shown, { answers, open, remove, change: () => { renaming = conversation; redraw(); byId("new-title").focus(); } }));
  }));
  byId("none-found").hidden = !wanted || found.length > 0;
}

function matches(conversation, wanted) {
  return conversation.title.toLowerCase().includes(wanted)
    || path(conversation).some(({ message }) => message.content?.toLowerCase().includes(wanted));
}

function entry(conversation, shown, { answers, open, remove, change }) {
  const { title } = conversation;
  return [
    button([answers(conversation) ? element("span", { class: "answering", title: "An answer is coming in" }) : null, title],
      () => open(conversation), { class: "open", title, "aria-current": shown }),
    button("✎", change, { class: "quiet rename", "aria-label": `Rename ${title}` }),
    button("×", () => remove(conversation), { class: "quiet remove", "aria-label": `Delete ${title}` }),
  ];
}

function titleForm(conversation, done) {
  const field = element("input", { id: "new-title", "aria-label": "New title", maxlength: "200" });
  field.value = conversation.title;
  const keys = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    done(null);
  };
  return element("form", { onsubmit: (event) => { event.preventDefault(); done(field.value.trim()); }, onkeydown: keys }, field);
}

// `searched` is called when other conversations are to be listed.
export function wireDrawer(searched) {
  byId("menu").addEventListener("click", () => toggleDrawer(!byId("sidebar").classList.contains("open")));
  byId("search").addEventListener("input", searched);
  byId("sidebar").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    if (byId("search").value) {
      byId("search").value = "";
      searched();
    } else if (byId("sidebar").classList.contains("open")) {
      toggleDrawer(false);
      byId("menu").focus();
    }
  });
}

export function toggleDrawer(on) {
  byId("sidebar").classList.toggle("open", on);
  byId("menu").setAttribute("aria-expanded", String(on));
}

export function search() {
  toggleDrawer(true);
  byId("search").focus();
  byId("search").select();
}
