"""All norms of a model."""
