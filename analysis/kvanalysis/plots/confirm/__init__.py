"""What the model itself lost, where kvconfirm has run."""
