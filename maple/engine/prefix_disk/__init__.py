"""Prefixes on disk, by themselves: blocks of keys and values outlive memory and the process."""
