"""``maple doctor``: what this machine has, what that means for the server, and what would help."""
