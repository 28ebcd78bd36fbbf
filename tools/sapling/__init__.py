"""How the embedded demo model is made: data, tokenizer, training, evaluation, export. ``python -m
tools.sapling`` runs it.
"""
