"""Each known bug fails the tests that it should, no other, and is named."""

from __future__ import annotations

import functools
from typing import Any

import planted_bugs as bugs
import pytest
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.checks.claim import Claim
from normbook.checks.report import Report

OUTPUT = "the output is x normalized over the right axes"
AFFINE = "gain and bias act on the output as they are"
SHAPES = "there is one gain and one bias for each channel"
BIASED = "the variance divides by n, not by n - 1"
EPS = "eps is added to the variance, inside the root"
TWO_PASSES = "a mean far from 0 costs no precision in float32"
CONSTANT = "a constant channel stays finite, output and gradient"
PRECISIONS = "float32 gives what float64 gives, up to rounding"
DTYPE = "the output has the dtype of the input"
INPUT = "the input is left as it is"
BY_X = "the gradient by x is that of the output"
BY_PARAMETERS = "the gradients by gain and bias are those of the output"
ALIKE = "gain, bias and eps act in evaluation as in training"
UNTRAINED = "evaluation works before any training"
MEAN = "the running mean averages the means of the batches"
VARIANCE = "the running variance averages the unbiased variances"
GRAPH = "the running statistics hold no graph"
STATE = "state_dict carries the running statistics"
EVAL_MODE = "eval() means the same with gradients on and off"
TRAIN_MODE = "train() uses the batch, with gradients on and off"
KEEPS = "evaluation leaves the running statistics as they are"
ALONE = "evaluation of an example does not depend on the others"
SINGLE = "a batch with one value for each channel is refused in training"
COPIES = "deepcopy and pickle work after training, and copy the statistics"
BOTH_MODES = "training and evaluation give the same"
EXAMPLES = "an example does not depend on the others in the batch"
POSITIONS = "a position does not depend on the other positions"
SIGN = "the sign of the input is the sign of x_hat: f(-x) = -f(x)"
ONE = "a batch of one works, and gives the same"

HALF = "float16 and bfloat16 give what float32 gives"
LAYOUT = "the memory layout of the input does not matter"
SECOND = "a second call gives what a first one gives"
IN_EVALUATION = "the gradient in evaluation is that of the output"
FOLLOWS = "evaluation follows what the layer holds"
MOVES = "the running statistics move alike without gradients"
ONE_EXAMPLE = "one example with several positions is a batch"
NAMED = "it is the norm of its name, and nothing else"
HELD = "gain and bias are held as parameters"


Bug = tuple[str, set[str], str]  # the class, the tests that fail, the reason
BUGS: list[Bug] = [
    ("BatchStatisticsWithoutGradient", {BY_X}, "mean and variance are constants"),
    ("BatchBuffersInGraph", {GRAPH, COPIES}, "keeps the autograd graph"),
    ("BatchOnePassVariance", {TWO_PASSES}, "E[x^2] - E[x]^2"),
    ("BatchBiasedRunningVariance", {VARIANCE}, "differs from torch; Keras"),
    (
        "BatchModeFromGradMode",
        {EVAL_MODE, TRAIN_MODE, KEEPS, ALONE, MOVES},
        "torch.is_grad_enabled()",
    ),
    ("BatchStatisticsNotBuffers", {STATE}, "are no buffers"),
    ("BatchStatisticsInList", {STATE}, "are no buffers"),
    ("BatchSigmaPlusEps", {EPS, CONSTANT}, "sigma + eps gives 0.997"),
    ("BatchEpsInPlaceOfSmallSigma", {EPS, CONSTANT}, "max(sigma, eps) gives 1"),
    ("BatchWithoutEps", {EPS, CONSTANT}, "sigma, without eps gives 1"),
    ("BatchScalarGain", {SHAPES}, "one scalar for the whole layer"),
    ("BatchUnbiasedForward", {BIASED}, "the unbiased variance normalizes"),
    ("BatchMomentumReversed", {MEAN}, "weight of the old value here, as in Keras"),
    ("BatchVarianceWeightsReversed", {VARIANCE}, "each other's weight"),
    ("BatchAveragedDeviation", {VARIANCE}, "standard deviations are averaged"),
    ("BatchCorrectedAverages", {MEAN}, "corrected for its start, as in Adam"),
    ("BatchWithoutAverages", {MEAN}, "still uses the first mean"),
    ("BatchNotAnAverage", {MEAN}, "is no average"),
    ("BatchAlwaysByBatch", {KEEPS, ALONE}, "normalizes by the batch"),
    ("BatchSpoiledByOne", {SINGLE}, "It leaves NaN or infinity in running_var"),
    ("BatchEvaluationUpdates", {KEEPS, ALONE}, "leaks into the model"),
    (
        "BatchOverChannels",
        {OUTPUT},
        "the statistics run over axis 1, expected axis 0",
    ),
    ("BatchOneMeanForAll", {OUTPUT}, "the statistics run over axes 0 and 1, expected"),
    ("BatchDividesByVariance", {OUTPUT}, "divided by the variance, not by its root"),
    ("BatchMeanNotSubtracted", {OUTPUT}, "nothing is subtracted from x"),
    ("BatchGhosts", {OUTPUT}, "each 4 examples have statistics of their own"),
    ("BatchAbsoluteGain", {AFFINE}, "used as its absolute value"),
    ("BatchClampedGain", {AFFINE}, "a negative gain is used as 0"),
    ("BatchScaled", {AFFINE}, "x_hat comes out multiplied by 0.9."),
    ("BatchClipped", {OUTPUT}, "large x_hat is clipped"),
    ("BatchOtherEpsInEvaluation", {ALIKE}, "evaluation divides by 0.1, expected"),
    ("BatchEpsOutsideInEvaluation", {ALIKE}, "divides by 1e-05, expected"),
    ("BatchGainTwiceInEvaluation", {ALIKE}, "the gain acts twice"),
    ("BatchNoBiasInEvaluation", {ALIKE}, "the bias is added not"),
    ("BatchUnbiasedInSinglePrecision", {PRECISIONS}, "float32 the output differs"),
    (
        "BatchOtherEvaluationInSinglePrecision",
        {PRECISIONS},
        "in float32 the evaluation differs",
    ),
    ("BatchHalfBecomesSingle", {DTYPE}, "for torch.float16 the output is torch.fl"),
    ("BatchKeepsLastGraph", {GRAPH, COPIES}, "the last batch until the next one"),
    ("BatchMadeWithFirst", {UNTRAINED, STATE}, "cannot evaluate, it raises Attr"),
    ("BatchRandom", {OUTPUT}, "the layer is random"),
    (
        "BatchUpdatesAttributeInEvaluation",
        {KEEPS, STATE},
        "changes running_mean: what is measured leaks",
    ),
    (
        "BatchCorrectedInEvaluation",
        {MEAN, STATE},
        "something else that evaluation uses is no buffer",
    ),
    ("BatchCountIsNoBuffer", {STATE}, "but not after one more batch"),
    ("BatchWithoutBias", {AFFINE}, "the bias is not used"),
    ("BatchSinglePrecision", {DTYPE}, "for torch.float64 the output is torch.fl"),
    ("BatchWritesIntoInput", {INPUT}, "writes into its input"),
    ("BatchGainGradientHalved", {BY_PARAMETERS}, "gamma is off by 50 %"),
    ("BatchGainGradientIsMean", {BY_PARAMETERS}, "it is a mean, not a sum, over"),
    ("BatchGainWithoutGradient", {BY_PARAMETERS}, "gets no gradient"),
    ("BatchRootOfM", {BY_X}, "sqrt(m) in place of m"),
    ("BatchGradientTimes1000", {BY_X}, "1000 times the right one"),
    ("BatchGradientALittleOff", {BY_X}, "1.0005 times the right one"),
    ("LayerSignLost", {OUTPUT, SIGN}, "LN(a x) = LN(x) holds for a > 0 only"),
    ("LayerUnbiased", {BIASED}, "which is sqrt((n - 1) / n)"),
    ("LayerDoubled", {AFFINE}, "x_hat comes out multiplied by 2"),
    ("LayerSignFlipped", {AFFINE}, "the sign is the wrong one"),
    ("LayerPlusOneWithoutParameters", {AFFINE}, "expected 0, 0, 0 and more to be"),
    ("LayerOfLayer", {EPS}, "or a second norm behind the first"),
    ("LayerEpsOutsideInSinglePrecision", {PRECISIONS}, "of size 0.0032"),
    ("LayerRandom", {OUTPUT}, "the layer is random"),
    ("LayerPlainTensor", {HELD, DTYPE}, "after .to(torch.float64) the layer raises Ru"),
    ("LayerWithoutEps", {CONSTANT}, "with one value throughout the output is not"),
    ("LayerDividesByZero", {OUTPUT}, "holds NaN or infinity"),
    ("LayerDetached", {BY_X}, "x gets no gradient at all"),
    ("LayerDoubledWithoutParameters", {AFFINE}, "multiplied by 2"),
    ("LayerSumOfSquares", {AFFINE}, "the sum of squares, not of their mean"),
    ("LayerSigmaPlusEps", {EPS, CONSTANT}, "sigma + eps gives 0.997"),
    ("LayerTorchStd", {BIASED, EPS}, "sigma + eps gives 0.997"),
    ("LayerOverTime", {OUTPUT, POSITIONS}, "the positions of axis 1 share them"),
    ("LayerOverBatch", {OUTPUT, EXAMPLES, ONE}, "the examples of the batch share them"),
    ("LayerScalarGain", {SHAPES}, "gamma has shape (), expected (8,)"),
    ("LayerWithoutGradient", {BY_X}, "mean and variance are constants"),
    ("LayerOnePassVariance", {TWO_PASSES}, "E[x^2] - E[x]^2"),
    ("BatchInHalf", {HALF}, "a square beyond 65504 is infinite"),
    ("LayerInHalf", {HALF}, "a square beyond 65504 is infinite"),
    ("LayerTinyEpsInHalf", {HALF}, "an input of zeros gives NaN or infinity"),
    ("LayerViewsMemory", {LAYOUT}, "not contiguous, as after transpose, the layer"),
    ("LayerReadsMemory", {LAYOUT}, "with other strides, as after transpose, give"),
    ("LayerKeepsFirstMean", {SECOND}, "something of the first call is kept"),
    ("LayerOverwritesCache", {SECOND}, "the second overwrites"),
    ("LayerReusesOutput", {SECOND}, "overwrites the output of the one before"),
    ("BatchDetachedInEvaluation", {IN_EVALUATION}, "after eval() x gets no gradient"),
    ("BatchCachedAtEval", {FOLLOWS}, "eval() or the first call keeps a copy"),
    (
        "LayerCachedAtEval",
        {FOLLOWS, IN_EVALUATION},
        "after load_state_dict into a layer that has",
    ),
    ("BatchFixedUnderNoGrad", {MOVES}, "in training mode under no_grad"),
    ("BatchDriftsWhenFrozen", {MOVES}, "in training mode with requires_grad=False"),
    ("BatchVarianceBeginsAtZero", {UNTRAINED}, "evaluation multiplies x by 316"),
    ("BatchSqueezesOne", {ALONE}, "one example evaluated alone changes by"),
    ("LayerScaledInTraining", {AFFINE, BOTH_MODES}, "after eval() the output"),
]


@functools.cache
def check(layer: Any, shape: Any = None) -> Report:
    """Check a layer of 8 features or 3 channels, of a class or of a planted one."""
    layer = getattr(bugs, layer) if isinstance(layer, str) else layer
    features = 8 if layer.__name__.startswith("Layer") else 3
    return check_norm_layer(layer(features), shape, quiet=True)


def reasons(report: Report) -> str:
    return "\n".join(f.reason for f in report.findings if f.passed is False)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0])
def test_a_bug_fails_the_tests_that_it_should_and_is_named_with_a_cure(
    bug: Bug,
) -> None:
    layer, failed, reason = bug
    report = check(layer)
    assert set(report.failed) == failed
    assert reason in reasons(report)
    assert all(f.cure for f in report.findings if f.passed is False)


def test_every_test_is_failed_by_some_bug() -> None:
    right = (check(bugs.HandBatchNorm), check(bugs.HandLayerNorm))
    names = {finding.name for report in right for finding in report.findings}
    failed = set().union(*(failed for _, failed, _ in BUGS))
    said_where_it_fails_alone = {HELD}
    others = {NAMED, ONE_EXAMPLE}  # see the tests of those
    assert names | said_where_it_fails_alone == failed | others


def test_one_example_normalized_by_other_statistics_is_told() -> None:
    report = check(bugs.BatchOneImageByRunningStatistics, (8, 3, 4, 5))
    assert report.failed == (ONE_EXAMPLE,)
    assert "not normalized by the mean and variance of its pos" in reasons(report)


def test_images_show_statistics_that_each_position_has_for_itself() -> None:
    report = check(bugs.BatchPositionsApart, (8, 3, 4, 5))
    assert report.failed == (OUTPUT,)
    assert "the statistics run over axis 0, expected axes 0, 2 and 3" in reasons(report)


BATCH_NORMS = "HandBatchNorm BatchClosedForm BatchKeepsInverse BatchKeepsLastInput"
LAYER_NORMS = "HandLayerNorm LayerWithEpsOfType"


@pytest.mark.parametrize("layer", f"{BATCH_NORMS} {LAYER_NORMS}".split())
def test_a_norm_written_by_hand_passes(layer: Any) -> None:
    assert check(layer).failed == ()


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 6), (2, 3, 4, 5, 6)])
def test_a_batch_norm_written_by_hand_passes_with_positions(shape: Any) -> None:
    assert check(bugs.HandBatchNorm, shape).failed == ()


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5)])
def test_a_batch_norm_that_takes_one_value_of_each_channel_is_told(shape: Any) -> None:
    report = check(bugs.BatchAcceptsOne, shape)
    place = "of one example with one position" if len(shape) > 2 else "of one example"
    told = next(f.reason for f in report.findings if f.name == SINGLE)
    assert told.startswith(f"{place} the output is the same, whatever the input; torch")
    assert report.failed == ()


@pytest.mark.parametrize("eps", [1e-3, 1e-5, 1e-8])
def test_eps_without_an_attribute_is_found_by_behaviour(eps: float) -> None:
    class LayerWithHiddenEps(bugs.LayerWithoutEps):
        def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
            return (x - mean) / (var + eps).sqrt()

    assert check(LayerWithHiddenEps).failed == ()


def test_the_unbiased_variance_is_found_among_hundreds_of_values() -> None:
    report = check(bugs.BatchUnbiasedForward, (8, 3, 10, 10))  # a factor of 0.9987
    assert report.failed == (BIASED,)


def test_two_bugs_in_one_layer_are_both_named() -> None:
    class Both(bugs.BatchBiasedRunningVariance, bugs.BatchStatisticsNotBuffers):
        pass

    assert set(check(Both).failed) == {VARIANCE, STATE}


def test_a_layer_that_works_in_place_is_told_so_wherever_it_fails() -> None:
    failed = [f for f in check(bugs.LayerInPlace).findings if f.passed is False]
    assert {INPUT, BY_X} <= {f.name for f in failed}
    assert all("in place" in f.cure or "x -=" in f.cure for f in failed)


def test_wrong_groups_of_channels_are_named() -> None:
    report = check_norm_layer(bugs.GroupInterleaved(), kind="group", quiet=True)
    assert report.failed == (OUTPUT,)
    assert "expected each group of channels of each example" in reasons(report)


def test_an_error_of_the_checks_is_not_told_as_the_layers() -> None:
    def broken(subject: object) -> None:
        raise RuntimeError("the check is wrong")

    subject: Any = None
    with pytest.raises(RuntimeError, match="the check is wrong"):
        Claim("a claim", broken)(subject)


def gain_near_1(size: int) -> nn.Module:
    """Return a layer of 1 + weight, whose weights begin near 0."""
    layer: nn.Module = vars(bugs)["BatchGainAsOnePlus"](size)
    nn.init.constant_(layer.get_parameter("gamma"), 1e-3)
    return layer


def test_what_may_be_meant_is_other_and_passes_where_it_is_allowed() -> None:
    for layer, name, convention in (
        (gain_near_1, AFFINE, "1 + gain"),
        ("LayerMeanNotSubtracted", NAMED, "RMS norm"),
    ):
        report = check(layer)
        assert (report.failed, report.passed) == ((), False)
        assert [*report.others] == [convention]
        for allowed in (convention, name):
            assert report.allowing((allowed,)).passed
