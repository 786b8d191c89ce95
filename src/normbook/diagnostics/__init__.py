"""Measure what training does to a network, without changing what training does.

Each measure has one module, named after it, with its definition and source. What they
share:

``model``
    Any :class:`torch.nn.Module`, on any device, compiled or not, in its present mode.
    Parameters, buffers, gradients, modes and random number generators are left bit for
    bit as they were (:mod:`normbook.diagnostics.undisturbed`).
``loss``
    Takes the model and runs it on one fixed batch: a scalar in nats
    (:data:`~normbook.diagnostics.undisturbed.Loss`).
``layers``
    Names from ``model.named_modules()``. A ``ValueError`` tells of one that is unknown,
    or not applied exactly once to a tensor.
"""
