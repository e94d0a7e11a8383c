"""Whether an offline error predicts the model's own loss."""
