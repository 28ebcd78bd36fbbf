"""Maple Server: an OpenAI-compatible HTTP server for Maple-Preview."""

__version__ = "0.1.0"
