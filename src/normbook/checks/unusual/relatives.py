r"""What stands in a norm's place and is none of a known kind: its name, its formula.

A relative is taken by the name of its class, or, on graphs, by what it is called with;
whether it computes the formula of that name is tested by what it gives.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm

import normbook.checks.unusual.relative_formulas as formulas
import normbook.checks.unusual.relative_slips as slips
from normbook.checks.claim import Claim, Fault, NotTested
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE

CURE = "Compare the layer with its source."


class Relative(NamedTuple):
    """A relative of the norms; ``pattern`` is searched in names of classes."""

    name: str
    pattern: str
    text: str
    misfits: formulas.Misfits | None = None
    subtracts_mean: bool = False  # and a mean far from 0 should do no harm
    slips: formulas.Misfits | None = None  # other formulas, that are wrong
    others: str = ""  # says that there are other forms, of which no formula is known
    keeps_range: bool = True  # and in half precision it should give the same


# fmt: off
RELATIVES = (
    Relative("frozen batch norm", "frozen",
        "it evaluates by fixed statistics in every mode",
        formulas.along_channels(lambda axis, x: x)),
    Relative("Dynamic Tanh", "dynamictanh|^dyt",
        "gain tanh(alpha x) + bias, no statistics",
        formulas.bounded(torch.tanh, torch.atanh, is_shifted=False)),
    Relative("Derf", "^derf|dynamicerf",
        "gain erf(alpha x + s) + bias, no statistics",
        formulas.bounded(torch.erf, torch.erfinv)),
    Relative("DyISRU", "^dyisru",
        "gain x / sqrt(beta + x^2) + bias, no statistics",
        formulas.bounded(lambda z: z / (1 + z.square()).sqrt(),
                         lambda t: t / (1 - t.square()).sqrt())),
    Relative("FRN", "filterresponse|^frn",
        "filter response norm: x over the root mean square of its positions, and a "
        "threshold behind",
        formulas.filter_response, slips=slips.filter_response),
    Relative("EvoNorm", "evonorm.*[sb][012]",
        "an activation and a norm that were found by search",
        formulas.evonorm),
    Relative("EvoNorm", "evonorm(?!.*[sb][012])",
        "an activation and a norm that were found by search",
        formulas.evonorm, others="it is none of S0 to B2, and no formula of another"),
    Relative("GRN", "globalresponse|grn$",
        "global response norm: each channel by its share of the size of all",
        formulas.global_response, slips=slips.global_response),
    Relative("ghost batch norm", "ghostb|splitbatchnorm|splitbn",
        "each part of a batch has a mean and a variance of its own, as on several "
        "devices",
        formulas.by_parts),
    Relative("batch norm by running statistics", "estimatedbatch",
        "in training, too, it normalizes by the running statistics, which the batch "
        "moved just before; no gradient passes through them",
        formulas.estimated),
    Relative("running normalization",
        "^running|empiricalnorm|obs(ervation)?norm|^normali[sz]er|standardscaler",
        "in training, too, it normalizes by the mean and variance of all that it has "
        "seen; no gradient passes through them",
        formulas.by_what_was_seen, keeps_range=False),
    Relative("batch renormalization", "^renorm|batchrenorm",
        "in training the running statistics take part",
        formulas.renormalized),
    Relative("pair norm", "pairnorm",
        "nodes without their mean, and over the size of all or of each",
        formulas.plain(
            lambda x: (x - x.mean(0)) / (x - x.mean(0)).square().sum(-1).mean().sqrt(),
            lambda x: normalize(x - x.mean(0), dim=-1))),
    Relative("mean subtraction", "meansub",
        "nodes without their mean, over nothing",
        formulas.plain(lambda x: x - x.mean(0))),
    Relative("message norm", "messagenorm|msgnorm",
        "a message as a direction, and as long as the node that it comes to",
        formulas.message_norm),
    Relative("graph size norm", "graphsize",
        "x over the root of the number of nodes, no statistics",
        formulas.plain(lambda x: x / len(x) ** 0.5)),
    Relative("differentiable group norm", "diffgroup|differentiablegroup",
        "x and a share of batch norms of soft groups of nodes",
        formulas.soft_groups),
    Relative("graph norm", "graphnorm|^nodes",
        "statistics over the nodes of a graph, which lie along axis 0",
        formulas.over_nodes),
    Relative("equivariant norm", "^irreps",
        "vectors over their mean length, and scalars as in batch norm",
        formulas.equivariant),
    Relative("cumulative norm", "cumulative",
        "statistics of the steps so far",
        formulas.cumulative, subtracts_mean=True),
    Relative("batch-channel norm", "batchchannel",
        "batch norm and then a norm by channels"),
    Relative("scale alone", "simplenorm|bias_?free",
        "x over the deviation from its mean, which is not subtracted",
        formulas.scale_alone),
    Relative("whitening", "whiten|zca|decorrelat",
        "channels made uncorrelated by a matrix, each with variance 1",
        formulas.white, keeps_range=False,
        others="its outputs go together, and no formula of another"),
    Relative("complex norm", "^c(batch|layer)?norm|complex",
        "real and imaginary parts made white by their covariance",
        formulas.complex_norm),
    Relative("quaternion norm", "^q(batch|layer)?norm|quaternion",
        "the four parts of a number over one deviation of all four",
        formulas.quaternion_norm),
)
# fmt: on


def relatives_of(layer: nn.Module) -> Iterator[tuple[Relative, bool]]:
    """Yield the relatives that a layer may be, and whether its class says so.

    What takes the argument ``batch``, the graph of each node, has nodes along axis 0; a
    batch norm inside may be called for each part of a batch.
    """
    children = [*layer.children()]
    wraps = len(children) == 1 and not any(True for _ in layer.parameters(False))
    named = (layer, *children) if wraps else (layer,)
    names = [kind.__name__.lower() for one in named for kind in type(one).__mro__]
    names += ["irreps"] if hasattr(layer, "irreps") else []
    more = []
    if "batch" in [*inspect.signature(layer.forward).parameters][1:]:
        more.append("nodes")
    if any(isinstance(part, _BatchNorm) for part in layer.children()):
        more.append("ghostbatchnorm")
    # One of torch's own kind is held to that.
    of_torch = isinstance(layer, _BatchNorm)
    for relative in RELATIVES:
        if of_torch and relative.name == "running normalization":
            continue
        is_named = any(re.search(relative.pattern, name) for name in names)
        if is_named or any(re.search(relative.pattern, name) for name in more):
            yield relative, is_named or relative.misfits is None


def _named(name: str) -> Relative:
    return next(one for one in RELATIVES if one.name == name)


# The formula tells these, whatever their name is, from what is merely wrong.
CUMULATIVE, BY_POSITIONS = _named("cumulative norm"), _named("FRN")
# And this from what has no kind.
SCALE_ALONE = _named("scale alone")


def formula_of(relative: Relative) -> Claim[Subject]:
    """Return the claim that a layer computes the formula of its name."""

    def fault(subject: Subject) -> Fault | str | None:
        if relative.misfits is None:
            raise NotTested(f"no formula of {relative.name} is known here", CURE)
        found = list(relative.misfits(subject))
        best = min(found, key=lambda one: one.error, default=formulas.Misfit(1.0))
        if not best.error < TOLERANCE and relative.others:
            raise NotTested(f"{relative.others} {relative.name} is known here", CURE)
        if not best.error < TOLERANCE:
            wrong = relative.slips(subject) if relative.slips else ()
            seen = next((f"{one.what}. " for one in wrong if one.error < 1e-4), "")
            return Fault(
                f"{seen}{relative.text}: with the best gain and bias of each channel "
                f"the formula is off by {best.error:.2g} of the largest output.",
                "Compare it with the formula, or give it another name.",
            )
        what = f": {best.what}" if best.what else ""
        gain, has_parameters = best.gain, any(True for _ in subject.layer.parameters())
        if not has_parameters and abs(gain.mean() - 1) > TOLERANCE > gain.std():
            what += f", times {gain.mean():.3g}"
        to = (
            "rounding"
            if best.error < 1e-6
            else f"{best.error:.0e} of the largest output"
        )
        return f"The formula holds up to {to}{what}."

    return Claim("it computes the formula of its name", fault)
