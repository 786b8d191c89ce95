"""Copies of layers that deepcopy refuses, and what hangs on a tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from normbook.checks.copies import copy_of, graph_nodes, tensors_of


def test_what_deepcopy_refuses_is_copied_without_its_graph_which_the_layer_keeps() -> (
    None
):
    layer = nn.BatchNorm1d(3)
    layer.running_mean = 2 * layer.weight
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(layer)
    other = copy_of(layer)
    assert other.state_dict()["running_mean"].tolist() == [2.0, 2.0, 2.0]
    assert layer.state_dict(keep_vars=True)["running_mean"].grad_fn is not None
    for (_, ours), (_, copied) in zip(
        tensors_of(layer), tensors_of(other), strict=True
    ):
        assert ours.data_ptr() != copied.data_ptr()


def test_a_tensor_in_a_list_in_a_graph_is_copied() -> None:
    layer: Any = nn.Linear(2, 2)
    layer.kept = [{"mean": layer.weight * 3}]
    assert copy_of(layer).kept[0]["mean"].grad_fn is None


def test_hooks_that_run_stay_behind_and_those_of_the_state_are_copied() -> None:
    layer: Any = nn.Linear(2, 2)
    layer.register_forward_hook(print)
    layer.register_forward_pre_hook(print, with_kwargs=True)
    layer.register_full_backward_pre_hook(print)
    layer.register_state_dict_post_hook(lambda *of: None)
    hooks = {key: len(v) for key, v in vars(copy_of(layer)).items() if "hooks" in key}
    assert {key for key, count in hooks.items() if count} == {"_state_dict_hooks"}


def test_tensors_are_found_wherever_they_are_kept() -> None:
    norm: Any = nn.BatchNorm1d(3)
    norm.seen = [torch.ones(1), {"last": torch.ones(2)}]
    layer = nn.Sequential(norm)
    names = {name for name, _ in tensors_of(layer)}
    assert {"0.weight", "0.running_var", "0.seen.0", "0.seen.1.last"} <= names


def test_each_operation_counts_once() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x + 1
    assert not graph_nodes(x)
    assert len(graph_nodes(y * y)) == 3  # the product, the sum, and x as its source


def test_a_copy_without_hooks_may_install_its_own_again() -> None:
    layer: Any = nn.LayerNorm(3)
    layer._output_capturing_hooks_installed = True  # as transformers has it
    layer.register_forward_hook(lambda *_: None)
    copied = copy_of(layer)
    assert not copied._forward_hooks
    assert copied._output_capturing_hooks_installed is False
    assert layer._output_capturing_hooks_installed
