"""Layers that are called in another way, or are none of the usual norms."""
