"""Acme's format: thoughts between ``[[`` and ``]]``, calls as ``<call f>{…}</call>``."""

from acme_parser.reasoning import AcmeReasoning

__all__ = ["AcmeReasoning"]
