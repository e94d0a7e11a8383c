"""What theorems promise against what was measured, whatever the paper."""
