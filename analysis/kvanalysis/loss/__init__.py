"""A run's predictions of the model's loss: nats a token, from the gradient in the trace."""
