"""What one kv head holds from step to step."""
