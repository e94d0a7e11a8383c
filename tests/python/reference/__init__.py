"""Plain numpy definitions of the compression methods, written from their specification alone."""
