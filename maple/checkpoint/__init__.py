"""A checkpoint as it lies on disk or on the hub: config, files, and where each tensor is. Needs no torch."""
