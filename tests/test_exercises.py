"""Answers to exercises: the right one passes, each slip is named, bad input is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import exercise_help
import notebook_rules
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

from normbook import exercises
from normbook.exercises import when_the_batch_fails
from normbook.exercises.answers import Choice, Exercise, Function, Numbers, Sizes
from normbook.layer_norm import layer_norm_forward, rms_norm_forward
from normbook.layers.layer_norm import ModelRMSNorm
from normbook.query_key_norm import largest_score, query_key_norm_forward

BOOK = Path(__file__).parents[1] / "book"
TOC = Path(__file__).parents[1] / "_toc.yml"
ALL: dict[str, Exercise] = exercises._EXERCISES
CHECKED = [name for name in exercises.names() if ALL[name].answer is not None]


def test_every_exercise_of_the_book_has_hints_in_its_order() -> None:
    found = []
    for part in yaml.safe_load(TOC.read_text("utf-8"))["parts"]:
        for page in notebook_rules.pages(part):
            path = BOOK.parent / f"{page}.ipynb"
            cells = (
                json.loads(path.read_text("utf-8"))["cells"] if path.exists() else []
            )
            for cell in cells:
                text = "".join(cell["source"])
                found += re.findall(r"^:label: ex-([\w-]+)$", text, re.M)
    assert exercises.names() == found
    assert all(1 <= len(ALL[name].hints) <= 3 for name in found)


def right_and_slips(name: str) -> tuple[Any, list[tuple[Any, str]]]:
    answer = ALL[name].answer
    if isinstance(answer, Choice):
        return answer.right, list(answer.others.items())
    if isinstance(answer, Sizes):
        return set(answer.right), [(set(e), why) for e, _, why in answer.slips]
    assert isinstance(answer, Function | Numbers)
    return answer.right, list(answer.slips)


@pytest.mark.parametrize("name", CHECKED)
def test_the_right_answer_is_right_and_says_why(name: str) -> None:
    right, _ = right_and_slips(name)
    verdict = exercises.check(name, right)
    assert verdict
    assert str(verdict) == f"Right. {ALL[name].answer.why}"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [(name, *slip) for name in CHECKED for slip in right_and_slips(name)[1]],
)
def test_a_slip_is_named(name: str, given: Any, why: str) -> None:
    verdict = exercises.check(name, given)
    assert not verdict
    assert verdict.text == why


@pytest.mark.parametrize("name", CHECKED)
def test_another_wrong_answer_gets_the_first_hint(name: str) -> None:
    answer = ALL[name].answer
    if isinstance(answer, Choice):
        pytest.skip("every other word is refused")
    right, _ = right_and_slips(name)
    given: Any
    if isinstance(answer, Function):
        given = lambda *values: 1.37 * np.asarray(right(*values)) + 0.01  # noqa: E731
    elif isinstance(answer, Sizes):
        given = {7919}
    else:
        given = 1.37 * np.asarray(right)
    verdict = exercises.check(name, given)
    assert not verdict
    assert verdict.text == f"A hint: {ALL[name].hints[0]}"


def right(name: str, *values: Any) -> Any:
    answer = ALL[name].answer
    assert isinstance(answer, Function)
    return answer.right(*values)


def test_answers_on_padding_are_those_of_padded_arrays() -> None:
    mu, var, c, p = 1.5, 0.6, -0.7, 0.25
    live = np.random.default_rng(0).normal(size=300)
    live = mu + (live - live.mean()) / live.std() * var**0.5
    padded = np.append(live, np.full(100, c))
    found = padded.mean(), padded.var()
    assert np.allclose(right("vl-value", mu, var, c, p), found)
    zeros = np.append(live, np.zeros(100))
    around = (live - zeros.mean()) ** 2
    expected = zeros.mean(), around.sum() / 400
    assert np.allclose(right("vl-count", mu, var, p), expected)
    y = ((zeros - zeros.mean()) / zeros.std())[:300]
    assert np.allclose(right("vl-group", mu, var, p), (y.mean(), y.var()))


def test_answers_on_split_batches_are_those_of_batches() -> None:
    rand = np.random.default_rng(0)
    shards = rand.normal(size=(4, 2000, 5))  # of 5 values
    factor = shards.var(2).mean() / shards.var()
    assert abs(factor - right("split-average", 5)) < 0.02
    x = rand.normal(3, 2, size=9)
    mean, squares = x.mean(), ((x - x.mean()) ** 2).sum()
    sums = (x - 1).sum(), ((x - 1) ** 2).sum()
    assert np.allclose(right("split-pivot", *sums, 1, 9), (mean, squares))


def test_the_gradient_of_a_renormalization_that_is_not_detached() -> None:
    rand = torch.Generator().manual_seed(0)
    x, dl_dy = torch.randn(2, 6, 3, dtype=torch.float64, generator=rand)
    x.requires_grad_()
    mean, var, eps = torch.ones(3), torch.full((3,), 2.0), 1e-5
    mu, std = x.mean(0), torch.sqrt(x.var(0, correction=0) + eps)
    sigma = torch.sqrt(var + eps)
    for r, d, known in (
        (std / sigma, (mu - mean) / sigma, right),
        ((std / sigma).detach(), ((mu - mean) / sigma).detach(), None),
    ):
        y = (x - mu) / std * r + d
        (dl_dx,) = torch.autograd.grad(y, x, dl_dy, retain_graph=True)
        given = [v.detach().numpy() for v in (dl_dy, x, mean, var)]
        function = known or (lambda _, *v: when_the_batch_fails._detached(*v))
        assert np.allclose(function("sb-bug", *given, eps), dl_dx, rtol=1e-6)


def test_answers_on_folding_are_those_of_convolutions() -> None:
    rand = torch.Generator().manual_seed(0)
    double: Any = {"dtype": torch.float64, "generator": rand}
    x = torch.randn(2, 4, 5, 6, **double)
    w3, w1 = torch.randn(4, 4, 3, 3, **double), torch.randn(4, 4, 1, 1, **double)
    k3, k1, k0 = torch.rand(3, 4, 1, 1, **double)
    y = k3 * F.conv2d(x, w3, padding=1) + k1 * F.conv2d(x, w1) + k0 * x
    given = (v.numpy().copy() for v in (w3, w1, *(k[:, 0, 0] for k in (k3, k1, k0))))
    w = torch.tensor(right("fold-branches", *given))
    assert torch.allclose(F.conv2d(x, w, padding=1), y)
    transposed = torch.randn(4, 4, 3, 3, **double)
    w = torch.tensor(
        right("fold-bug", transposed[:3, :3].numpy(), k3[:3, 0, 0].numpy())
    )
    y = k3[:3] * F.conv_transpose2d(x[:, :3], transposed[:3, :3])
    assert torch.allclose(F.conv_transpose2d(x[:, :3], w), y)
    p = right("fold-pad", 0.3, 0.8, 1.2, -0.5, 0.1)
    assert abs(1.2 * (p - 0.3) / 0.9**0.5 - 0.5) < 1e-12


def test_answers_on_recurrent_networks_and_channels() -> None:
    x = torch.zeros(7, 2, 3, requires_grad=True)
    nodes: list[Any] = [x[t].grad_fn for t in range(7)]
    returned = sum(node(torch.ones(2, 3)).numel() for node in nodes)
    assert right("lstm-quadratic", 7, 2, 3) == returned
    c = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.tanh(c), c)
    buggy = 1 - (0.6 * torch.tanh(c)) ** 2
    assert np.isclose(right("lstm-bug", 0.6, 0.8), (buggy / slope).item())
    logits = np.append([0.4, -0.2, 1.0], np.zeros(3))  # of three words, and padding
    weights = np.exp(logits) / np.exp(logits).sum()
    left = right("rd-mask", 3, np.exp(logits[:3]).sum())
    assert np.isclose(weights[:3].sum(), left)
    groups = np.arange(12).reshape(4, 3).T  # as the bug has them: C = 12, G = 3
    for c_ in range(12):
        assert c_ in groups[right("ca-strided", c_, 12, 3)]


def test_answers_on_weights_keep_the_function() -> None:
    rand = np.random.default_rng(0)
    W, u = rand.normal(size=(5, 3)), rand.normal(size=(4, 3))
    expected, _ = layer_norm_forward(u @ W.T)
    for name in ("lng-centring", "tr-rms"):
        found, _ = rms_norm_forward(u @ right(name, W).T)
        assert np.allclose(found, expected)


def test_answers_on_large_transformers_are_those_of_scores() -> None:
    rand = np.random.default_rng(0)
    gains = rand.normal(size=(2, 4))
    q, k = rand.normal(size=(2, 1000, 4))
    q[:4] = k[:4] = np.eye(4)
    (a, b), _ = query_key_norm_forward(q, k, gains[0], gains[1], 1e-15)
    turned = [a @ rotation(angle) @ b.T / 2 for angle in np.linspace(0, np.pi, 181)]
    assert np.isclose(np.max(np.abs(turned)), right("lt-monitor", *gains))
    product, weight = ALL["lt-decay"].answer.right  # type: ignore[union-attr]
    assert np.isclose(largest_score(np.full(64, product), np.ones(64)), 50)
    scores = np.zeros(1000)
    scores[0] = largest_score(np.ones(64), np.ones(64))
    assert np.isclose(weight, np.exp(scores[0]) / np.exp(scores).sum())


def rotation(angle: float) -> Any:  # of the pairs (0, 2) and (1, 3)
    cos, sin = np.cos(angle) * np.eye(2), np.sin(angle) * np.eye(2)
    return np.block([[cos, sin], [-sin, cos]])


def test_answers_on_few_bits_are_those_of_layers_and_of_roundings() -> None:
    rand = torch.Generator().manual_seed(0)
    for offset in (0.0, 1.0):
        norm = ModelRMSNorm(4, offset=offset, dtype=torch.float64)
        norm.weight.data += torch.randn(4, generator=rand)
        W, x = torch.randn(2, 4, 4, dtype=torch.float64, generator=rand)
        expected = norm(x) @ W.T
        merged = right("fb-merge", W.numpy(), norm.weight.detach().numpy(), offset)
        norm.weight.data.fill_(1 - offset)
        assert torch.allclose(norm(x) @ torch.tensor(merged).T, expected)
    ups = np.random.default_rng(0).random((1000, 4000)) < 0.128  # a spacing is 1/128
    gains = 1 + ups.sum(0) / 128
    mean, deviation = ALL["fb-random"].answer.right  # type: ignore[union-attr]
    assert abs(gains.mean() - mean) < 4 * deviation / 4000**0.5
    assert abs(gains.std() / deviation - 1) < 0.05


def test_answers_on_networks_without_a_norm() -> None:
    rand = np.random.default_rng(0)
    w = rand.normal(size=(24, 9))  # a row has 9 weights; the port counts 24 times 9
    w -= w.mean(1, keepdims=True)
    rows = w / np.sqrt(w.var(1, ddof=1, keepdims=True) * w.size)
    lengths = np.sqrt((rows**2).sum(1) * 9 / 8)
    assert np.allclose(right("wn-fan", 24), lengths)
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-(z**2) / 2)
    y = right("wn-leaky", 0.3) * np.where(z > 0, z, 0.3 * z)
    mean = np.average(y, weights=weight)
    assert np.isclose(np.average((y - mean) ** 2, weights=weight), 1)
    after = np.array([1.0, -0.4 * 2.5])
    angle = np.arccos(after[0] / np.sqrt(after @ after))
    assert np.isclose(right("wn-angle", 0.4, 2.5), angle)


def raises(n: int) -> float:
    raise ZeroDivisionError("a hole")


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("bn-bund", 1, "near it are bn-bound"),
        (None, 1, "exercises.names"),
        ("bn-gain", 0.2, "cannot be checked"),
        ("bn-bound", raises, "raised ZeroDivisionError: a hole"),
        ("bn-bound", lambda n: float("nan"), "finite"),
        ("bn-bound", lambda n: "much", "finite"),
        ("why-fan", 0.005, "another shape"),
        ("why-fan", (1, float("inf")), "finite"),
        ("why-fan", None, "two variances"),
        ("bn-bug-axes", "x", "one of 'mu', 'var', 'y'"),
        ("bn-last", ["two"], "batch sizes"),
        ("bn-last", [2.5, 4], "whole"),
        ("tr-coin", torch.ones((), requires_grad=True), "finite"),
        ("lstm-carousel", lambda: 1, "raised TypeError"),
    ],
)
def test_bad_input_is_told_with_the_rule(name: Any, given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        exercises.check(name, given)


def test_a_number_in_place_of_a_function_is_told_how_to_write_one() -> None:
    with pytest.raises(TypeError, match="write lambda n:"):
        exercises.check("bn-bound", 3)


def test_a_function_may_write_into_its_arguments() -> None:
    def in_place(w: Any, k: Any) -> Any:
        w *= k[:, None, None]
        return w

    assert exercises.check("fold-bug", in_place)


def test_hints_come_in_steps_and_end() -> None:
    hints = [exercises.hint("bn-bound", step) for step in (1, 2, 3)]
    assert len(set(hints)) == 3
    with pytest.raises(ValueError, match="from 1 to 3"):
        exercises.hint("bn-bound", 4)
    with pytest.raises(ValueError, match="near it are"):
        exercises.hint("bn-bond")


# An exercise, as the pages have it.
exercise_enumerable: Any = type("exercise_enumerable", (nodes.Element,), {})


def test_a_page_has_the_hints_and_the_call() -> None:
    document = new_document("a page", get_default_settings())
    document += [
        exercise_enumerable("", label="ex-bn-bound"),
        exercise_enumerable("", label="ex-not-there"),
        nodes.section("", label="ex-bn-bound"),
    ]
    exercise_help.add_help(None, document)  # type: ignore[arg-type]
    helped, without, section = document.children
    (html,) = helped.children
    assert html.astext().count("<summary>") == 3
    assert 'check("bn-bound", ...)</code> with a function of n.' in html.astext()
    assert not without.children
    assert not section.children
