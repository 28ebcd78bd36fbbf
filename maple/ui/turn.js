// One answer in the making: folds streamed chunks into a message, and keeps its times.

export class Turn {
  constructor() {
    this.message = { role: "assistant", content: "", reasoning_content: "", tool_calls: [] };
    this.started = performance.now();
    this.first = null;
    this.answered = null;
  }

  take(chunk) {
    if (chunk.usage) this.message.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    const now = performance.now();
    if (content || reasoning || calls) this.first ??= now;
    if (content || calls) this.answered ??= now;
    if (reasoning) this.message.reasoning_content += reasoning;
    if (content) this.message.content += content;
    for (const { index, ...call } of calls ?? []) this.message.tool_calls[index] = call;
    if (choice.finish_reason) this.message.finish = choice.finish_reason;
  }

  end(stopped) {
    const now = performance.now();
    const message = this.message;
    message.stopped = stopped;
    if (message.reasoning_content) message.thoughtSeconds = ((this.answered ?? now) - (this.first ?? now)) / 1000;
    const tokens = message.usage?.completion_tokens;
    if (tokens > 1 && now > this.first) message.rate = (tokens - 1) / ((now - this.first) / 1000);
    if (message.tool_calls.length && !message.content) message.content = null;
    return message;
  }
}
