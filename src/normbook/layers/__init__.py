"""Layers for training with torch: drop-ins for those of ``torch.nn``.

They keep the books (parameters, running statistics, modes, ``state_dict``); the
mathematics is that of the modules beside this folder, forward and backward.
"""
