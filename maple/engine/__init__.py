"""The engine: the thread that owns a model, its queue, and what is kept between requests; no model, no HTTP."""
