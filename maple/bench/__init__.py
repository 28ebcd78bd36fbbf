"""``maple bench``: how fast this machine runs a Maple, against its memory's own limit and against llama.cpp."""
