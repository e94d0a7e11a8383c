"""Plain numpy definitions of the compression methods, written only from their specifications."""
