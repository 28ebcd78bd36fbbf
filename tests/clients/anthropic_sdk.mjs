// What the JavaScript SDK's page shows, against the server whose port is the argument; prints what came of it as JSON.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: `http://127.0.0.1:${process.argv[2]}`, apiKey: "none" });
const model = "maple";
const look = { name: "look", description: "Look.", input_schema: { type: "object", properties: { place: { type: "string" } } } };
const base = { model, max_tokens: 2048, tools: [look], thinking: { type: "enabled", budget_tokens: 1024 } };
const found = {};

const messages = [{ role: "user", content: "Look twice." }];
const kinds = [];
for (let turn = 0; turn < 3; turn++) {
  const answer = await client.messages.create({ ...base, messages });
  kinds.push(answer.content.map((block) => block.type).join("+"));
  messages.push({ role: "assistant", content: answer.content });
  const calls = answer.content.filter((block) => block.type === "tool_use");
  const results = calls.map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: `${input.place} looks fine` }));
  if (results.length) messages.push({ role: "user", content: results });
}
found.kinds = kinds;

const again = messages.slice(0, 1);
found.streamed = [];
for (let turn = 0; turn < 3; turn++) {
  let pieces = "";
  const stream = client.messages.stream({ ...base, messages: again });
  stream.on("text", (text) => (pieces += text)).on("thinking", (text) => (pieces += text)).on("inputJson", (text) => (pieces += text));
  const { content } = await stream.finalMessage();
  const calls = content.filter((block) => block.type === "tool_use");
  again.push({ role: "assistant", content });
  if (calls.length) again.push({ role: "user", content: calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "fine" })) });
  found.streamed.push(pieces);
}

const asked = messages.slice(0, 1);
found.counted = (await client.messages.countTokens({ model, messages: asked })).input_tokens > 0;
const refused = await client.messages.batches.retrieve("none").catch((error) => error);
found.refused = [refused instanceof Anthropic.NotFoundError, refused.status];
const stream = client.messages.stream({ ...base, messages: asked });
stream.on("streamEvent", () => stream.abort());
found.aborted = await stream.done().catch((error) => error instanceof Anthropic.APIUserAbortError);
found.models = (await client.models.list()).data.map(({ type }) => type);
console.log(JSON.stringify(found));
