// What stands on an empty page: who is there, and what could be asked of it.
import { button, element } from "./dom.js";

const IDEAS = [
  { text: "What is 17 × 23? Explain the steps." },
  { text: "Write a Python function that checks whether a word is a palindrome." },
  { text: "What time is it in Tokyo?", tools: true },
];

// `properties` are the server's own, or null while they are not known; `ask(text, tools)` begins a conversation.
export function invitation(properties, ask) {
  const told = properties?.invitation;
  const ideas = (told?.ideas ?? IDEAS).map(({ text, tools }) => element("li", {},
    button([text, tools ? element("span", { class: "muted" }, " the page answers its call") : null], () => ask(text, tools))));
  return element("div", { class: "empty" },
    element("img", { src: "ui/icon.svg", alt: "", width: "56", height: "56" }),
    element("h2", {}, "What should Maple think about?"),
    element("p", { class: "muted" }, "Conversations stay in this browser."),
    told ? element("p", { class: "notice" }, told.notice) : null,
    element("ul", {}, ideas));
}
