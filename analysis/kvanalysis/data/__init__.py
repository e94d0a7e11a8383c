"""kvreplay's files as typed tables and arrays."""
