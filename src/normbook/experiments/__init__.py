"""Experiments of the book, one file each."""
