"""The claims that every norm layer is held to."""
