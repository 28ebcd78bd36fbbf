"""What the sapling can do, one module a family: each function draws one exchange for a split."""
