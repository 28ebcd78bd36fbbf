"""Maple as a Transformers model, its loader and its runner: the path for GPUs, and for CPUs without the kernels."""
