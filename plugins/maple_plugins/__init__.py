"""Parsers for model output: the SDK that plugin authors build on, and the built-in parsers."""
