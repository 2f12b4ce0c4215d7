"""What runs a step: the protocol, the MLX backend, and a fake one that stands for the device in tests."""
