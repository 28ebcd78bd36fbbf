"""A parser whose module cannot be imported: its traceback must reach its author."""

raise RuntimeError("acme's own mistake")
