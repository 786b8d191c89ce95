"""Tests for a layer, a model or a measure that somebody else wrote.

Each prints which tests fail and why, unless it is called with ``quiet=True``.
"""

# The modules from the bottom up: each imports only from those before it.
#
# What all share
#   report              findings, and how a report shows them
#   calls               calls of the user's code, whose errors are told from ours
#   claim               a sentence, and the function that looks for a fault in it
#   copies              copies of a layer, and the tensors that it holds
#   registration        what torch does not reach in a layer
# A norm layer, and what it should be
#   definitions         the norms in plain torch, and known ways to get them wrong
#   recognition         what a layer says that it is
#   growth              why an output grows with its input
#   subject             the layer under test, recognized by what it does
# Which slip it is, told from numbers
#   affine_values       which gain and bias act
#   start               with which gain and bias a layer begins
#   explanations        which formula gives a wrong output
#   diagnosis           what is measured of it where none does
#   renorm              batch renormalization, and slips in it
#   averages            what a running statistic took in
#   corrections         how evaluation corrects its start
#   evaluation_formula  how evaluation makes a line of it
#   loading             what load_state_dict changes
# The claims
#   output_claims       statistics, gain and bias, eps
#   precision_claims    rounding
#   call_claims         the input, its memory, a second call
#   gradient_claims     the backward pass
#   example_claims      each example by itself
#   trained_layers      layers that have seen batches
#   running_claims      running statistics
#   state_claims        modes, copies, state
# Layers that are called in another way, or are none of the usual norms
#   relative_formulas   formulas of what stands in a norm's place
#   relatives           which of them a layer may be
#   padding             what is padding, and whether statistics hold it
#   conditions          a condition for a layer that takes one
#   condition_claims    what the condition does
#   recurrent_step      one step of an LSTM
#   recurrent_probe     one interface for recurrent layers
#   recurrent_layers    several layers and directions
#   recurrent           all tests of a recurrent layer
# The tests of this package
#   norm_layer          check_norm_layer
#   kernels             weights that convolutions make of their own
#   model_runs          the norms of a model, and what they see
#   whole_model         audit
#   measures            check_smoothness_measure

from normbook.checks.measures import Measure, check_smoothness_measure
from normbook.checks.norm_layer import check_norm_layer
from normbook.checks.whole_model import Audit, Harm, audit

__all__ = [
    "Audit",
    "Harm",
    "Measure",
    "audit",
    "check_norm_layer",
    "check_smoothness_measure",
]
