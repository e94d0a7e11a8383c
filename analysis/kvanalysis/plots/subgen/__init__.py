"""The figures and theorem of SubGen."""
