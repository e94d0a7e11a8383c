"""Compares the engine with a peer and the machine's matrix product, in alternating rounds of CPU time."""
