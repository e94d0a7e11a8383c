"""The tokens that one kv head holds from step to step."""
