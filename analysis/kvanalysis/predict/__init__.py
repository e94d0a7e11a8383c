"""Whether an offline error predicts what the model itself loses."""
