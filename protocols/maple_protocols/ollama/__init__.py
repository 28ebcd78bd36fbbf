"""Ollama's api: chat, generate, and what its clients ask about the model."""
