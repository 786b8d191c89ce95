"""Tests for a layer, a model or a measure that somebody else wrote.

Each prints which tests fail and why, unless it is called with ``quiet=True``.
"""

# The modules from the bottom up: each imports only from those before it.
#
# What all share
#   report                     findings, and how a report shows them
#   calls                      calls of the user's code, whose errors are told from ours
#   claim                      a sentence, and the function that looks for a fault in it
#   tensors                    what is drawn, fitted and compared
#   copies                     copies of a layer, and the tensors that it holds
#   registration               what torch does not reach in a layer
# A norm layer, and what it should be
#   layer.definitions          the norms in plain torch, and well-known mistakes
#   layer.recognition          what a layer says that it is
#   layer.parts                which inputs have a part in an output
#   layer.subject              the layer under test, recognized by what it does
# Which slip it is, told from numbers
#   slips.affine_values        which gain and bias act
#   slips.start                with which gain and bias a layer begins
#   slips.explanations         which formula gives a wrong output
#   slips.diagnosis            what is measured of it where none does
#   slips.renorm               batch renormalization, and slips in it
#   slips.averages             what a running statistic took in, and its correction
#   slips.evaluation_formula   how evaluation makes a line of it
#   slips.loading              what load_state_dict changes
#   slips.backward             which term of a gradient is off
# What every norm layer is held to
#   claims.output              statistics, gain and bias, eps
#   claims.precision           rounding
#   claims.another_way         what another mode computes
#   claims.call                the input, its memory, a second call
#   claims.gradient            the backward pass
#   claims.example             each example by itself
#   claims.trained_layers      layers that have seen batches
#   claims.running             running statistics
#   claims.state               modes, copies, state
# Layers that are called in another way, or are none of the usual norms
#   unusual.any_layer          what must hold of any layer
#   unusual.relative_formulas  formulas of what stands in a norm's place
#   unusual.relative_slips     slips in some of them
#   unusual.relatives          which of them a layer may be
#   unusual.padding            what is padding, and whether statistics hold it
#   unusual.conditions         a condition for a layer that takes one
#   unusual.condition_claims   what the condition does
#   unusual.weights            weights that should be standardized
# Layer-normalized LSTMs, and layers of other recurrent cells
#   recurrent.forms            ways in which a recurrent layer is called
#   recurrent.terms            what the gates are made of
#   recurrent.step             one step of an LSTM
#   recurrent.probe            one interface for recurrent layers
#   recurrent.batch            batch norms in a step, and biases before a norm
#   recurrent.reach            which steps an output sees
#   recurrent.layers           several layers and directions
#   recurrent.states           which states are returned
#   recurrent.handling         what is given, both modes, random draws
#   recurrent.gradients        the backward pass, and what it reaches
#   recurrent.claims           all tests of a recurrent layer
# The tests of this package
#   norm_layer                 check_norm_layer
#   measures                   check_smoothness_measure
# All norms of a model
#   model.runs                 the norms of a model, and what they see
#   model.passes               what its parts did in a pass
#   model.kernels              weights that convolutions make of their own
#   model.harms                what may go wrong, and how it is told
#   model.subject              a copy of a model that was run on the data
#   model.use                  which norms are called, held and read
#   model.axes                 over what norms take their means
#   model.reach                later steps and other graphs that outputs see by norms
#   model.statistics           running statistics, and evaluation
#   model.modes                in which mode norms are called
#   model.functional           batch norms that are called as functions
#   model.flow                 what becomes of the output of each norm
#   model.values               each norm by itself: class, eps, gain
#   model.audit                audit

from normbook.checks.measures import Measure, check_smoothness_measure
from normbook.checks.model.audit import audit
from normbook.checks.model.harms import Audit, Harm
from normbook.checks.norm_layer import check_norm_layer

__all__ = [
    "Audit",
    "Harm",
    "Measure",
    "audit",
    "check_norm_layer",
    "check_smoothness_measure",
]
