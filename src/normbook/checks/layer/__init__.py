"""What a norm layer is, and what it should be."""
