"""Shared code of the book *Normalization in Deep Learning*.

Nothing is re-exported here: ``from normbook.batch_norm import batch_norm`` tells
the reader which file to open.
"""
