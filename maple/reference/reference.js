// Shows openapi.json as a page. Text only ever becomes text nodes.
import { inOrder } from "./samples.js";
import { trial } from "./trial.js";

const $ = (id) => document.getElementById(id);
const TYPE_WORDS = { integer: "integer", number: "number", string: "text", boolean: "true or false", array: "list", object: "object", null: "null" };
const BOUNDS = [
  ["minimum", "at least"], ["exclusiveMinimum", "above"], ["maximum", "at most"], ["minLength", "length at least"],
  ["maxLength", "length at most"], ["minItems", "items at least"], ["maxItems", "items at most"], ["pattern", "matches"],
];
const INT64 = 2 ** 63;
let description;

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// `code` between backticks becomes code, everything else stays text.
function prose(text) {
  return (text ?? "").split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function paragraphs(text) {
  return (text ?? "").split("\n\n").filter(Boolean).map((part) => element("p", {}, prose(part)));
}

function resolve(value) {
  if (!value?.$ref) return value;
  return value.$ref.split("/").slice(1).reduce((found, key) => found[key], description);
}

function typeWords(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeWords))].join(" or ");
  if (schema.type === "array") return `list of ${typeWords(schema.items ?? {})}`;
  const types = [schema.type ?? []].flat();
  return types.length ? types.map((type) => TYPE_WORDS[type] ?? type).join(" or ") : "anything";
}

function bounds(schema) {
  const own = BOUNDS.filter(([key]) => key in schema && Math.abs(schema[key]) !== INT64).map(([key, words]) => `${words} ${schema[key]}`);
  return [...own, ...(schema.anyOf ?? []).flatMap(bounds)];
}

function objectsIn(schema) {
  const found = resolve(schema);
  if (found.properties) return [found];
  return [...(found.anyOf ?? []), ...(found.items ? [found.items] : []), ...(found.contentSchema ? [found.contentSchema] : [])].flatMap(objectsIn);
}

function fieldRow(name, schema, required) {
  const limits = bounds(schema);
  const inner = objectsIn(schema);
  return element("div", { class: "field" },
    element("dt", {}, element("code", {}, name), required ? element("em", {}, " required") : null),
    element("dd", {},
      element("span", { class: "type" }, typeWords(schema), limits.length ? ` (${limits.join(", ")})` : ""),
      paragraphs(schema.description),
      inner.length ? element("details", {}, element("summary", {}, "its fields"), inner.map(fields)) : null));
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties).map(([name, value]) => fieldRow(name, value, required.has(name)));
  return element("div", { class: "object" }, paragraphs(schema.description), element("dl", {}, rows));
}

function contents(content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => {
    const inner = objectsIn(schema);
    const head = [element("code", {}, type), " ", typeWords(schema)];
    return inner.length ? element("details", {}, element("summary", {}, head), inner.map(fields)) : element("p", {}, head);
  });
}

function parameterRow(parameter) {
  const { name, in: place, description: text, required, schema } = resolve(parameter);
  return fieldRow(`${name} (${place})`, { ...schema, description: text ?? "" }, required);
}

function responseRow([status, response]) {
  const headers = Object.keys(response.headers ?? {}).filter((name) => name !== "X-Request-Id");
  return element("div", { class: "field" },
    element("dt", {}, element("code", {}, status)),
    element("dd", {}, paragraphs(response.description), headers.length ? element("p", {}, `Headers: ${headers.join(", ")}`) : null,
      Number(status) < 400 || response.content?.["application/json"]?.schema.$ref !== "#/components/schemas/Error" ? contents(response.content) : null));
}

function keyWords(security) {
  if (!security.length) return "Open: needs no key.";
  return security.some((way) => !("key" in way)) ? "This server asks for no key." : "Needs the key: Authorization: Bearer …";
}

function needsKey(security) { return security.length > 0 && security.every((way) => "key" in way); }

function operationView(path, method, operation) {
  const parameters = operation.parameters ?? [];
  return element("section", { id: operation.operationId },
    element("h3", {}, element("span", { class: `method ${method}` }, method.toUpperCase()), " ", element("code", {}, path)),
    element("p", {}, prose(operation.summary)),
    element("p", { class: "muted" }, keyWords(operation.security ?? [])),
    trial(element, { path, method, operation }, needsKey(operation.security ?? [])),
    parameters.length ? [element("h4", {}, "Parameters"), element("dl", {}, parameters.map(parameterRow))] : null,
    operation.requestBody ? [element("h4", {}, "Body"), contents(operation.requestBody.content)] : null,
    element("h4", {}, "Answers"), element("dl", {}, Object.entries(operation.responses).map(responseRow)));
}

function operationsByTag() {
  const groups = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      groups.set(tag, [...(groups.get(tag) ?? []), { path, method, operation }]);
    }
  }
  return groups;
}

function draw() {
  const groups = inOrder(operationsByTag());
  $("title").textContent = `${description.info.title} ${description.info.version}`;
  $("about").replaceChildren(...prose(description.info.description));
  $("contents").replaceChildren(...groups.map(([tag, members]) => element("div", {},
    element("h2", {}, tag),
    element("ul", {}, members.map(({ path, method, operation }) => element("li", {},
      element("a", { href: `#${operation.operationId}` }, `${method.toUpperCase()} ${path}`)))))));
  $("operations").replaceChildren(...groups.flatMap(([tag, members]) => [
    element("h2", {}, tag), ...members.map(({ path, method, operation }) => operationView(path, method, operation))]));
  const wanted = location.hash && $(location.hash.slice(1));
  if (wanted) wanted.scrollIntoView();
}

try {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  description = await response.json();
  draw();
} catch (error) {
  $("operations").replaceChildren(element("p", { role: "alert" }, `The description could not be loaded. ${error.message}`));
}
