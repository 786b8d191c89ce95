"""What holds of every experiment: its runs repeat, its figures have labels."""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import small
import torch
from torch import Tensor

from normbook import experiments
from normbook.errors import RecordError
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.experiments.without_norm import Number
from normbook.lab import runner, tuning
from normbook.lab.experiment import Experiment, Run

every_experiment = pytest.mark.parametrize("name", small.SETTINGS)
# The others differ from these in settings alone.
MODULES = {
    EXPERIMENTS[name].begin.__module__: name for name in reversed(small.SETTINGS)
}
every_variant = pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, id=f"{name} {variant}")
        for name in MODULES.values()
        for variant in small.variants(name)
    ],
)


def equal(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def is_matrix(parameter: Tensor) -> bool:
    """Whether a unit has several weights: not of the lengths of weight norm."""
    return parameter.ndim > 1 and parameter[0].numel() > 1


def is_fixup(run: Run) -> bool:
    return any(isinstance(module, Number) for module in run.model.modules()) and any(
        not matrix.any() for matrix in run.model.parameters() if is_matrix(matrix)
    )


def rescaled(matrices: Sequence[Tensor], first: Sequence[Tensor]) -> list[Tensor]:
    """Undo the factors of Fixup, in float32; behind 0 nothing is left to compare."""
    pairs = list(zip(matrices, first, strict=True))
    factors = [float(m.detach().norm() / f.detach().norm()) for m, f in pairs]
    assert {round(k, 6) for k in factors} == {0.0, 1.0, round(2**-0.5, 6)}
    return [
        f if k == 0 else torch.where((m / k - f).abs() < 1e-6, f, m / k)
        for k, (m, f) in zip(factors, pairs, strict=True)
    ]


def test_all_experiments_are_in_the_catalogue_and_all_networks_looked_at_here() -> None:
    names = (m.name for m in pkgutil.iter_modules(experiments.__path__))
    modules = [importlib.import_module(f"normbook.experiments.{m}") for m in names]
    defined = [v for m in modules for v in vars(m).values() if type(v) is Experiment]
    assert {id(one) for one in defined} == {id(one) for one in EXPERIMENTS.values()}
    assert all(name == one.name for name, one in EXPERIMENTS.items())
    assert {one.begin.__module__ for one in EXPERIMENTS.values()} == {*MODULES}


@pytest.mark.parametrize("name", MODULES.values())
def test_variants_of_a_seed_begin_with_the_same_weights_and_batches(name: str) -> None:
    runs = [small.begun(name, variant) for variant in small.variants(name)]
    first, *others = ([p for p in r.model.parameters() if is_matrix(p)] for r in runs)
    for run, matrices in zip(runs[1:], others, strict=True):
        assert equal(rescaled(matrices, first) if is_fixup(run) else matrices, first)
    by_size = {len(run.batch[0]): run for run in runs}
    for run in runs:
        same = by_size[len(run.batch[0])]
        assert equal(run.batch, same.batch)
        assert torch.equal(run.batches.order, same.batches.order)


def test_runs_of_an_experiment_share_what_they_prepare() -> None:
    sharing = set()
    for name in small.SETTINGS:
        variant = small.variants(name)[0]
        one, other = (small.begun(name, variant) for _ in range(2))
        assert one.shared is other.shared
        if one.shared is not None:
            sharing.add(one.shared.__class__.__module__.rpartition(".")[2])
    assert sharing == {
        *("conv_norms", "handwriting", "reading", "sigmoid_net", "which_hat")
    }


@every_variant
def test_measurements_do_not_disturb_a_run(name: str, variant: str) -> None:
    calm, watched = (small.begun(name, variant) for _ in range(2))
    for _ in range(3):
        watched.measure(steps=watched.step)  # as at the end: all of them
        assert watched.update() == calm.update()
    assert equal(*(run.model.state_dict().values() for run in (calm, watched)))


@every_variant
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(name: str, variant: str) -> None:
    whole, first, rest = (small.begun(name, variant) for _ in range(3))
    for _ in range(3):
        for run in (whole, first):
            run.measure(steps=run.step)
        assert whole.update() == first.update()
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(3):
        for run in (whole, rest):
            run.measure(steps=9)
        assert whole.update() == rest.update()
    assert whole.curves == rest.curves


@every_variant
def test_every_parameter_is_trained(name: str, variant: str) -> None:
    run = small.begun(name, variant)
    before = {k: p.detach().clone() for k, p in run.model.named_parameters()}
    # The first gives gains, behind a bias of 0, a slope, and what is behind a read-out
    # of 0; in Fixup the second does so for what is behind a convolution of 0.
    for _ in range(3 if is_fixup(run) else 2):
        run.update()
    for parameter, after in run.model.named_parameters():
        assert not torch.equal(after, before[parameter]), parameter


@every_experiment
def test_a_record_repeats_itself(name: str) -> None:
    record = small.record(name)
    some = replace(record, runs=[run for run in record.runs if run.seed == 0])
    assert runner.replay(some, small.experiment(name), small.data(name)) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_the_test_set_and_the_reported_seeds_choose_no_settings(
    experiment: Experiment,
) -> None:
    for name, scale in experiment.scales.items():
        for variant in scale.settings["variants"]:
            if tuning.is_tuned(scale.settings, variant):
                chosen_by = runner.variant_settings(scale, variant)["tuning"]
                assert chosen_by["criterion"]["measurement"] == "validation"
                assert not {*chosen_by["seeds"]} & {*scale.seeds}
                assert len(scale.seeds) >= (2 if name == "live" else 3)


@pytest.mark.parametrize("name", ["batch_4", "conv_norms_tuned"])
def test_recalibration_is_measured_where_there_is_batch_norm(name: str) -> None:
    for run in small.record(name).runs:
        assert ("recalibrated" in run.curves) == ("batch_norm" in run.variant)


@every_experiment
def test_every_figure_labels_its_axes_and_has_titles_only_in_rows(name: str) -> None:
    drawn = EXPERIMENTS[name].figures(small.record(name))
    for figure in (f for k, f in drawn.items() if not k.startswith("attention")):
        assert figure.axes[0].get_xlabel() + figure.axes[0].get_ylabel()
        assert figure.axes[-1].get_xlabel()
        rows = {round(ax.get_position().y0, 3) for ax in figure.axes}
        # Below a panel, its name would be taken for that of the next row.
        assert len(rows) > 1 or not any(ax.get_title() for ax in figure.axes)


@every_experiment
def test_the_figures_refuse_a_record_of_another_experiment(name: str) -> None:
    other = replace(small.record(name), name="tiny")
    pattern = rf"must be of (.* or )?{name}( or .*)?, got one of tiny"
    with pytest.raises(RecordError, match=pattern):
        EXPERIMENTS[name].figures(other)


@pytest.mark.parametrize("name", ["sigmoid_net", "vgg", "batch_4", "conv_norms_tuned"])
def test_a_run_without_its_data_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="data must be a Dataset, got None"):
        EXPERIMENTS[name].begin({}, 0, None, small.CPU)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("conv_norms_tuned", "one of none, batch_norm, .*"),
        ("handwriting_tuned", "one of none, layer_norm"),
        ("reading", "none, layer_norm or batch_norm"),
        ("transformer", "one of none, post, .*"),
        ("vowels_tuned", "one of none, layer_norm, .*"),
        ("without_norm", "one of batch_norm, none, .*"),
        ("without_norm_attention", "one of layer_norm, dynamic_tanh, .*"),
    ],
)
def test_a_normalization_that_there_is_not_is_refused(name: str, known: str) -> None:
    with pytest.raises(ValueError, match=f"norm must be {known}, got 'lrn'"):
        small.begun(name, small.variants(name)[0], norm="lrn")
