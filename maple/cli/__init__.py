"""The command line: its first words, what every command shares, and the commands without a room of their own."""
