"""Adaptive clipping: each unit by itself, and its step beside its length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_pairs import refusals

from normbook.adaptive_clipping import clip_by_unit, unit_lengths
from normbook.gradient_check import survivors

EXACT = 1e-12


def drawn(shape: tuple[int, ...] = (4, 3, 5)) -> list[np.ndarray]:
    """Return weights and a gradient, in which some units are long and some short."""
    rng = np.random.default_rng(0)
    w, dl_dw = rng.normal(size=(2, *shape))
    sizes = np.array([0.001, 0.1, 1.0, 30.0]).reshape(-1, *(1,) * (len(shape) - 1))
    return [w, dl_dw * sizes]


def check(clip=clip_by_unit) -> None:  # type: ignore[no-untyped-def]
    """Compare with the rule, unit by unit; the last unit has no weights yet."""
    w, dl_dw = drawn()
    w[3] = 0.0
    for w_i, g_i, found in zip(w, dl_dw, clip(dl_dw, w, 0.2, 0.05), strict=True):
        length, slope = (float(np.linalg.norm(a)) for a in (w_i, g_i))
        factor = min(1.0, 0.2 * max(length, 0.05) / slope)
        np.testing.assert_allclose(found, factor * g_i, rtol=EXACT)


def test_it_is_the_rule_of_each_unit() -> None:
    check()


def test_every_mutant_is_caught() -> None:
    assert survivors(clip_by_unit, check) == []


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2, 5)])
def test_torch_and_numpy_agree(shape: tuple[int, ...]) -> None:
    w, dl_dw = drawn(shape)
    found = clip_by_unit(torch.tensor(dl_dw), torch.tensor(w), 0.2)
    np.testing.assert_allclose(found, clip_by_unit(dl_dw, w, 0.2), rtol=EXACT)


def test_a_vector_is_one_unit() -> None:
    assert unit_lengths(np.array([3.0, 4.0])).tolist() == [5.0]


def test_a_gradient_of_zero_stays_zero() -> None:
    np.testing.assert_array_equal(
        clip_by_unit(np.zeros((2, 3)), np.ones((2, 3)), 0.1), 0
    )


def test_the_relative_step_does_not_depend_on_the_scale_of_the_weights() -> None:
    w, dl_dw = drawn()
    for scale in (0.1, 10.0):
        step = 1e6 * dl_dw  # all units are clipped
        relative = unit_lengths(clip_by_unit(step, scale * w, 0.2)) / unit_lengths(w)
        np.testing.assert_allclose(relative, 0.2 * scale, rtol=EXACT)


W = np.ones((4, 3))
test_bad_input_is_refused = refusals(
    (lambda: clip_by_unit(W, W, 0.0), ValueError, "most must be a positive number"),
    (lambda: clip_by_unit(W, W, 0.1, 0.0), ValueError, "eps must be a positive number"),
    (lambda: clip_by_unit(W.T, W, 0.1), ValueError, "dl_dw must have the shape of w"),
    (lambda: clip_by_unit(W, torch.ones(4, 3), 0.1), TypeError, "of the kind of w"),
)
