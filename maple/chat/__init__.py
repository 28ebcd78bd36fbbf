"""``maple chat``: a conversation in the terminal, over the server's own HTTP interface."""
