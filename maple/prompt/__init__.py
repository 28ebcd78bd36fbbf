"""From messages to token ids: template, sandbox, tokenizer files, and client text that must stay text."""
