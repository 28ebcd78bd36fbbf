"""The built-in parsers; each is found through its entry point, as any third-party parser is."""
