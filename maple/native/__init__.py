"""Checkpoints in the kernels' own layout, packed once, then mapped; without torch and Transformers."""
