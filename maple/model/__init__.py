"""Maple as a Transformers model, and the loaders for every spelling of its checkpoint."""
