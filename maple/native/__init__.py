"""The CPU path: packed weights, a whole step of Maple in C++, and the runner that serves it. Needs no torch."""
