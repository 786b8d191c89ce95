"""What a GPU takes and refuses, and what one forgets to move."""

import copy
import io
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from normbook import device

dev = torch.device("pretend")
TWO_DEVICES = "Expected all tensors to be on the same device"
rand = torch.Generator().manual_seed(0)
x = torch.randn(4, 3, generator=rand)
x_there = x.to(dev)


def equal(a: Any, b: Any) -> bool:
    """Whether two tensors are on the device and on the CPU, and otherwise equal."""
    there = a.device.type == "pretend" and b.device.type == "cpu"
    return there and a.dtype == b.dtype and torch.equal(a.cpu(), b)


def test_it_is_picked_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBOOK_DEVICE", " PRETEND")
    assert device.pick() == device.pick("pretend") == dev
    monkeypatch.delenv("NORMBOOK_DEVICE")
    assert device.pick().type != "pretend"  # never by itself
    with pytest.raises(ValueError, match=r"must be cpu, .*, got 'pretended'; correct"):
        device.pick("pretended")


PAIRS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": operator.add,
    "add in place": lambda a, b: a.clone().add_(b),
    "matmul": lambda a, b: a @ b.T,
    "linear": lambda a, b: functional.linear(a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "compare": torch.equal,
    "out": lambda a, b: torch.add(a, a, out=torch.empty_like(b)),
    "assign at": lambda a, b: a.clone().index_put_((torch.tensor([0, 1]),), b[:2]),
    "list": lambda a, b: torch._foreach_add([a], [b]),
}


@pytest.mark.parametrize("act", PAIRS.values(), ids=PAIRS)
def test_tensors_of_two_devices_do_not_mix(act: Callable[..., Any]) -> None:
    act(x_there, x_there)
    for pair in ((x_there, x), (x, x_there)):
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            act(*pair)


def test_a_layer_that_was_not_moved_refuses_what_was() -> None:
    for layer in (nn.Linear(3, 2), nn.BatchNorm1d(3), nn.LayerNorm(3), nn.LSTM(3, 2)):
        with pytest.raises(RuntimeError, match="same device"):
            layer(x_there)
        copy.deepcopy(layer).to(dev)(x_there)


def test_numbers_and_indices_of_the_cpu_are_taken() -> None:
    number, rows = torch.tensor(2.0), torch.tensor([2, 0])
    assert equal(x_there * number, x * number)
    assert equal(number - x_there, number - x)
    assert equal((x_there > 0) & True, x > 0)
    assert equal(x_there[rows], x[rows])
    assert equal(x_there[x[:, 0] > 0], x[x[:, 0] > 0])
    assert equal(x_there.masked_fill(x_there > 0, number), x.masked_fill(x > 0, number))
    y, y_there = x.clone(), x_there.clone()
    y[rows], y_there[rows] = number, number
    assert equal(y_there, y)
    y[0], y_there[1:2] = x[1], x[1:2]  # a copy
    with pytest.raises(RuntimeError, match="same device"):
        x_there @ x[0]
    with pytest.raises(RuntimeError, match="same device"):
        x[rows.to(dev)]
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        number.clone().add_(x_there[0, 0])


def test_numpy_does_not_see_its_memory() -> None:
    for see in (Tensor.numpy, np.asarray, lambda t: np.add(1, t)):
        with pytest.raises(TypeError, match="copy the tensor to host memory first"):
            see(x_there)
    assert np.array_equal(x_there.cpu().numpy(), x)
    assert x_there.tolist() == x.tolist()
    assert x_there[0, 0].item() == float(x_there[0, 0]) == x[0, 0]
    assert f"{x_there[0, 0]:.3f}" == f"{x[0, 0]:.3f}"
    assert "device='pretend:0'" in repr(x_there)


def test_generators_of_the_cpu_draw_no_numbers_there() -> None:
    for draw in (torch.randn, torch.rand):
        with pytest.raises(RuntimeError, match="Expected a 'pretend' device type"):
            draw(3, generator=rand, device=dev)
    with pytest.raises(RuntimeError, match="Expected a 'pretend' device type"):
        x_there.clone().normal_(generator=rand)
    with pytest.raises(RuntimeError):
        torch.randperm(3, generator=rand, device=dev)


def test_numbers_drawn_there_are_not_those_of_the_cpu_but_repeat() -> None:
    torch.manual_seed(5)
    there, here = torch.randn(3, device=dev).cpu(), torch.randn(3)
    mask = functional.dropout(torch.ones(50, device=dev))
    torch.manual_seed(5)
    first = torch.randn(3)
    assert torch.equal(first, here)  # the device takes none from the CPU
    assert not torch.equal(there, here)
    assert torch.equal(torch.randn(3, device=dev).cpu(), there)
    assert torch.equal(functional.dropout(torch.ones(50, device=dev)), mask)


def test_views_share_memory_and_pass_gradients() -> None:
    found = []
    for leaf in (x.clone(), x_there.clone()):
        base = leaf.requires_grad_() * 1
        base[1].mul_(3)
        base.T[0].add_(base.T[1])
        base.view(-1)[-1] = 0
        torch.autograd.backward(base.square().sum())
        assert leaf.grad is not None
        found += [base.detach(), leaf.grad]
    assert equal(found[2], found[0])
    assert equal(found[3], found[1])
    whole = torch.zeros(4, device=dev)
    whole.data[2:] = 1
    assert whole.tolist() == [0, 0, 1, 1]
    assert torch.arange(5, device=dev).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by hessian
def test_functions_of_autograd_and_of_torch_func() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return 2 * a

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (a,) = ctx.saved_tensors
            return g * a

    leaf = x_there.clone().requires_grad_()
    torch.autograd.backward(Double.apply(leaf).sum())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert equal(leaf.grad, x)

    def cube(v: Tensor) -> Tensor:
        return (v * v * v).sum()

    for transform in (torch.func.grad, torch.func.hessian, torch.func.jacfwd):
        f = torch.func.vmap(transform(cube))
        assert equal(f(x_there), f(x))
    pairs = (torch.func.jvp(cube, (v,), (v,))[1] for v in (x_there, x))
    assert equal(*pairs)


def trained(place: Any) -> list[Tensor]:
    """Train a small network with all kinds of layers; return what it became."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(2), nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True),
    )  # fmt: skip
    lstm, last = nn.LSTM(4, 3, num_layers=2, bidirectional=True), nn.Linear(6, 5)
    models = nn.ModuleList([net, lstm, last]).double().to(place)
    rand = torch.Generator().manual_seed(1)
    for make in (torch.optim.SGD, torch.optim.Adam):
        optimizer = make(models.parameters(), lr=0.01)
        for _ in range(3):
            images = torch.randn(2, 1, 4, 4, generator=rand).double().to(place)
            labels = torch.randint(5, (2,), generator=rand).to(place)
            h = net[:-1](images)
            h, _ = net[-1](h, h, h)
            packed = pack_padded_sequence(h.mT, torch.tensor([4, 2]), batch_first=True)
            _, (state, _) = lstm(packed)
            scores = last(torch.cat([state[-1], state[-2]], 1))
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(scores, labels))
            optimizer.step()
    return list(models.state_dict().values())


def test_training_comes_out_as_on_the_cpu() -> None:
    for there, here in zip(trained(dev), trained("cpu"), strict=True):
        assert there.device.type == "pretend"
        torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-12)


def test_states_are_copied_saved_and_loaded() -> None:
    layer: Any = nn.BatchNorm1d(3, device=dev)
    layer(x_there)
    twin, file = copy.deepcopy(layer), io.BytesIO()
    torch.save(layer.state_dict(), file)
    layer(x_there)
    assert layer.num_batches_tracked == 2 > twin.num_batches_tracked
    for place in (None, "cpu"):
        file.seek(0)
        state = torch.load(file, map_location=place)
        assert {v.device.type for v in state.values()} == {place or "pretend"}
        layer.load_state_dict(state)
        assert torch.equal(layer.running_var, twin.running_var)
