"""Files that kvreplay wrote, as typed tables and arrays."""
