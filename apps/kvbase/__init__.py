"""What all packages of kvreplay stand on: errors, progress, the engine's program, the frame of commands."""

__version__ = "0.1.0"
