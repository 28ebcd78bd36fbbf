"""The engine: one executor thread that owns the model, and the recording that can stand in for it."""
