"""The engine beside a peer and the machine's matrix product, in alternating rounds of CPU time."""
