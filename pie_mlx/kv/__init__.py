"""Bookkeeping of KV pages: who views which slots. No arrays of the device, no MLX."""
