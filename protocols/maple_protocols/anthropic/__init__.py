"""Anthropic's protocol: messages, their count, and the model listing in its shape."""
