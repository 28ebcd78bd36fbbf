// The server's API: facts about what it serves, and one streamed request as a sequence of chunks.

export class ApiError extends Error {
  constructor(message, { status = null, code = null, seconds = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.seconds = seconds; // after which it may be tried again
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refuse(response) {
  const facts = { status: response.status, seconds: Number(response.headers.get("Retry-After")) || null };
  let told = { message: `The server answered ${response.status}.` };
  try {
    told = (await response.json()).error;
  } catch { /* not our server's JSON: a proxy's page, say; the status says enough */ }
  throw new ApiError(told.message, { ...facts, code: told.code });
}

async function asked(path, key, body) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { headers: headers(key), ...options });
  if (!response.ok) await refuse(response);
  return response.json();
}

export async function model(key) { return (await asked("v1/models", key)).data[0]; }
export async function properties(key) { return asked("props", key); }

// Raises with the server's words where the model's template cannot show these tools.
export async function checkTools(tools, key) {
  await asked("apply-template", key, { messages: [{ role: "user", content: "?" }], tools });
}

// Ends the thinking of an answer that is coming in.
export async function answerNow(id, key) { await asked(`v1/chat/completions/${id}/answer`, key, {}); }

// {phase, done, total} while the model loads, else null. /health is a 503 then, and still says it.
export async function loading() {
  try {
    return (await (await fetch("health")).json()).loading ?? null;
  } catch {
    return null; // the question's own failure says what is wrong
  }
}

export async function* chat(body, { key, signal }) {
  const request = { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true };
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(request), signal };
  const response = await fetch("v1/chat/completions", options);
  if (!response.ok) await refuse(response);
  let finished = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, { code: chunk.error.code });
    finished ||= Boolean(chunk.choices?.[0]?.finish_reason);
    yield chunk;
  }
  if (!finished) throw new ApiError("The connection ended before the answer did.");
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (held + part.value).split(/\r?\n/);
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
