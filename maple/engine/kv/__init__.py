"""Where keys and values lie: blocks, the tables of sequences, and the tree of prefixes that are kept."""
