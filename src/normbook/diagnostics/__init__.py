"""Measure what training does to a network, without changing what training does.

Each measure has one module, named after it, with its definition and source. All of
them work on any :class:`torch.nn.Module`, on any device, compiled or not, and leave
parameters, buffers, gradients, modes and random number generators as they found
them (:mod:`normbook.diagnostics.undisturbed`).
"""
