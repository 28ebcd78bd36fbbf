"""An engine that replays recorded model outputs."""
