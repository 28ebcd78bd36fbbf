// The only way this page makes elements: text stays text, whatever is in it.

// Children may come in lists, which are as long as a text is: that many arguments a call does not take.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  children.flat().forEach((child) => child == null || node.append(child));
  return node;
}

export function button(label, action, attributes = {}) {
  return element("button", { type: "button", onclick: action, ...attributes }, label);
}

export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function byId(id) {
  return document.getElementById(id);
}

export async function copy(text, control) {
  const before = control.textContent;
  control.textContent = (await copied(text)) ? "Copied" : "Copying is blocked";
  setTimeout(() => { control.textContent = before; }, 1500);
}

// Browsers offer the clipboard to secure pages only; over plain http the old command still works.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "hidden", "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}
