"""Which slip it is, told from numbers."""
