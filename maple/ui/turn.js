// One answer in the making: folds streamed chunks into a message, and keeps its times.

export class Turn {
  // `message` is gone on with where it holds something already.
  constructor(message) {
    this.message = message;
    this.before = { tokens: message.usage?.completion_tokens ?? 0, seconds: message.thoughtSeconds ?? 0, content: message.content ?? "" };
    Object.assign(message, {
      content: message.content ?? "", reasoning_content: message.reasoning_content ?? "", tool_calls: message.tool_calls ?? [],
    });
    for (const name of ["error", "stopped", "finish"]) delete message[name];
    this.id = null;
    this.started = performance.now();
    this.first = null;
    this.answered = null;
    this.deltas = 0;
    this.progress = null; // the server's: in the queue, or reading the prompt
    this.waiting = null; // for a server that takes no question yet: {code, loading}
  }

  take(chunk) {
    this.id = chunk.id ?? this.id;
    this.waiting = null;
    if (chunk.usage) this.message.usage = chunk.usage;
    if (chunk.prompt_progress) this.progress = chunk.prompt_progress;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    const now = performance.now();
    if (content || reasoning || calls) {
      this.first ??= now;
      this.deltas += 1;
    }
    if (content || calls) this.answered ??= now;
    if (reasoning) this.message.reasoning_content += reasoning;
    if (content) this.message.content += content;
    for (const part of calls ?? []) this.#takeCall(part);
    if (choice.finish_reason) this.message.finish = choice.finish_reason;
  }

  // A call comes whole, or its name first and then its arguments in pieces.
  #takeCall({ index, ...part }) {
    const call = (this.message.tool_calls[index] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
    call.id = part.id ?? call.id;
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }

  get thinking() { return this.answered === null && !this.before.content; }

  get thoughtSeconds() {
    return this.before.seconds + ((this.answered ?? performance.now()) - (this.first ?? this.started)) / 1000;
  }

  // Seconds until the first token, or until now.
  get waited() { return ((this.first ?? performance.now()) - this.started) / 1000; }

  // Tokens a second so far. The stream does not count tokens, but nearly every delta is one.
  get pace() {
    return this.deltas > 1 ? rate(this.deltas, this.first) : null;
  }

  end(stopped) {
    const message = this.message;
    if (stopped) message.stopped = true;
    if (message.reasoning_content && !this.before.content) message.thoughtSeconds = this.thoughtSeconds;
    if (this.first) message.wait = this.waited;
    const tokens = message.usage?.completion_tokens;
    if (tokens > 1 && this.first) message.rate = rate(tokens, this.first);
    if (tokens && this.before.tokens) message.usage = { ...message.usage, completion_tokens: tokens + this.before.tokens };
    if (message.tool_calls.length && !message.content) message.content = null;
    return message;
  }
}

const TOO_SHORT = 0.1; // seconds that say nothing about a pace

// The first token's wait is not part of it.
function rate(tokens, first) {
  const seconds = (performance.now() - first) / 1000;
  return seconds > TOO_SHORT ? (tokens - 1) / seconds : null;
}
