"""The HTTP surface: thin Tornado handlers, writers and the table from exceptions to statuses."""
