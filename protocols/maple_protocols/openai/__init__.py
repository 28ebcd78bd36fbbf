"""The OpenAI-shaped protocols: chat, legacy completions, model listing."""
