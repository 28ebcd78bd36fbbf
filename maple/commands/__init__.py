"""The commands beside `serve`, one file each."""
