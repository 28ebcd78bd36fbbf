"""What pytest must not collect here."""

collect_ignore = ["acme-parser"]  # a distribution of its own, tested in an environment of its own
