"""Trace files (HDF5, schema 1; docs/formats.md): walking, checking, reading, identity, writing."""
