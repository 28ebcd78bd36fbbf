// One answer in the making: folds streamed chunks into a message, and keeps its times.

export class Turn {
  constructor() {
    this.message = { role: "assistant", content: "", reasoning_content: "", tool_calls: [] };
    this.started = performance.now();
    this.first = null;
    this.answered = null;
    this.deltas = 0;
  }

  take(chunk) {
    if (chunk.usage) this.message.usage = chunk.usage;
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
    for (const { index, ...call } of calls ?? []) this.message.tool_calls[index] = call;
    if (choice.finish_reason) this.message.finish = choice.finish_reason;
  }

  get thinking() { return this.answered === null; }

  get thoughtSeconds() {
    return ((this.answered ?? performance.now()) - (this.first ?? this.started)) / 1000;
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
    if (message.reasoning_content) message.thoughtSeconds = this.thoughtSeconds;
    if (this.first) message.wait = this.waited;
    const tokens = message.usage?.completion_tokens;
    if (tokens > 1 && this.first) message.rate = rate(tokens, this.first);
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
