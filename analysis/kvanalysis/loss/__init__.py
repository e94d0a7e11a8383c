"""What a run says of the model's loss: nats a token, from the gradient that a trace holds."""
