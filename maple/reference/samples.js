// What a route is tried with, and the order in which routes are told.

const QUESTION = [{ role: "user", content: "What is 17 * 23?" }];
const BODIES = {
  "/v1/chat/completions": { messages: QUESTION },
  "/v1/chat/completions/input_tokens": { messages: QUESTION },
  "/v1/completions": { prompt: "The leaves of a maple", max_tokens: 32 },
  "/v1/messages": { model: "maple", max_tokens: 1024, messages: QUESTION },
  "/v1/messages/count_tokens": { model: "maple", messages: QUESTION },
  "/v1/responses": { input: "What is 17 * 23?" },
  "/v1/responses/input_tokens": { input: "What is 17 * 23?" },
  "/v1/embeddings": { input: "maple" },
  "/api/chat": { model: "maple", messages: QUESTION, stream: false },
  "/api/generate": { model: "maple", prompt: "What is 17 * 23?", stream: false },
  "/api/show": { model: "maple" },
  "/tokenize": { prompt: "What is 17 * 23?" },
  "/detokenize": { tokens: [100, 101] },
  "/apply-template": { messages: QUESTION },
};
const GROUPS = ["Generation", "Models", "Stored responses", "Sessions", "Protocols", "Operations", "Pages"];
const FIRST = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"];

// The body that a route is tried with as JSON text; null where it takes none.
export function sampleBody(path, operation) {
  if (BODIES[path]) return JSON.stringify(BODIES[path], null, 2);
  return operation.requestBody ? "{}" : null;
}

// How the same is typed into a shell. A quote within the body would end the shell's.
export function curl(method, path, body, needsKey) {
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.origin}${path}`];
  if (needsKey) lines.push("-H \"Authorization: Bearer $MAPLE_API_KEY\"");
  if (body !== null) lines.push("-H \"Content-Type: application/json\"", `-d '${body.replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

export function inOrder(groups) {
  const place = (list, item) => (list.includes(item) ? list.indexOf(item) : list.length);
  return [...groups]
    .sort(([one], [other]) => place(GROUPS, one) - place(GROUPS, other))
    .map(([tag, members]) => [tag, members.toSorted((one, other) => place(FIRST, one.path) - place(FIRST, other.path))]);
}
