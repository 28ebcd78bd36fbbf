// The server's chat API: one streamed request, as a sequence of deltas.

export class ApiError extends Error {
  constructor(message, status = null) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refuse(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not our server's JSON: a proxy's page, say; the status says enough */ }
  throw new ApiError(message, response.status);
}

export async function model(key) {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) await refuse(response);
  return (await response.json()).data[0];
}

export async function* chat(body, { key, signal }) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(request), signal };
  const response = await fetch("v1/chat/completions", options);
  if (!response.ok) await refuse(response);
  let finished = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
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
