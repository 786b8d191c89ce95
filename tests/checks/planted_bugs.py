"""Norm layers written by hand: two that are right, and each bug that is known.

None uses ``torch.nn``'s own norms, so that the checks meet code as people write it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def moments(x: Tensor, *axes: int) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance by two passes, axes kept."""
    mean = x.mean(axes, keepdim=True)
    return mean, ((x - mean) ** 2).mean(axes, keepdim=True)


def one_pass(x: Tensor, *axes: int) -> tuple[Tensor, Tensor]:
    mean = x.mean(axes, keepdim=True)
    return mean, (x**2).mean(axes, keepdim=True) - mean**2


def along(values: Tensor, x: Tensor) -> Tensor:
    """Return one value for each channel so that it broadcasts with x."""
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


class HandBatchNorm(nn.Module):
    """Batch norm of (N, D) or (N, C, ...), right in every respect."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.gamma = nn.Parameter(torch.ones(num_features))
        self.beta = nn.Parameter(torch.zeros(num_features))
        self.running_mean: Any
        self.running_var: Any
        self.register_statistics(torch.zeros(num_features), torch.ones(num_features))

    def register_statistics(self, mean: Tensor, var: Tensor) -> None:
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", var)

    def uses_batch(self) -> bool:
        return self.training

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return moments(x, 0, *range(2, x.dim()))

    def check(self, x: Tensor) -> None:
        if x.numel() == x.shape[1]:
            raise ValueError("one value for each channel has no variance")

    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        mean, var = mean.detach().flatten(), var.detach().flatten()
        self.average(mean, var * n / (n - 1))

    def average(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean = self.mixed(self.running_mean, mean)
        self.running_var = self.mixed_var(self.running_var, var)

    def mixed_var(self, old: Tensor, new: Tensor) -> Tensor:
        return self.mixed(old, new)

    def mixed(self, old: Tensor, new: Tensor) -> Tensor:
        return (1 - self.momentum) * old + self.momentum * new

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return (x - mean) / (var + self.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize == 2:
            return HandBatchNorm.forward(self, x.float()).to(x.dtype)
        if self.uses_batch():
            self.check(x)
            mean, var = self.statistics(x)
            self.update(mean, var, x.numel() // x.shape[1])
        else:
            mean, var = along(self.running_mean, x), along(self.running_var, x)
        x_hat = self.normalized(x, mean, var)
        return along(self.gamma, x) * x_hat + along(self.beta, x)


class BatchBuffersInGraph(HandBatchNorm):
    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        self.average(mean.flatten(), var.flatten() * n / (n - 1))


class BatchBiasedRunningVariance(HandBatchNorm):
    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        self.average(mean.detach().flatten(), var.detach().flatten())


class BatchStatisticsNotBuffers(HandBatchNorm):
    def register_statistics(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean, self.running_var = mean, var


class BatchStatisticsInList(HandBatchNorm):
    """Right, but for keeping the statistics out of state_dict, in a list."""

    def register_statistics(self, mean: Tensor, var: Tensor) -> None:
        self.kept = [mean, var]

    def average(self, mean: Tensor, var: Tensor) -> None:
        self.kept[0] = self.mixed(self.kept[0], mean)
        self.kept[1] = self.mixed(self.kept[1], var)

    @property
    def running_mean(self) -> Tensor:
        return self.kept[0]

    @property
    def running_var(self) -> Tensor:
        return self.kept[1]


class BatchScalarGain(HandBatchNorm):
    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.gamma = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))


class BatchUnbiasedForward(BatchBiasedRunningVariance):
    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = (0, *range(2, x.dim()))
        return x.mean(axes, keepdim=True), x.var(axes, keepdim=True)


class BatchCorrectedAverages(HandBatchNorm):
    """Divided by what the weights sum to, as in Adam."""

    steps: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.register_buffer("steps", torch.zeros(()))

    def average(self, mean: Tensor, var: Tensor) -> None:
        self.steps = self.steps + 1
        super().average(mean, var)

    def mixed(self, old: Tensor, new: Tensor) -> Tensor:
        weight = self.momentum / (1 - (1 - self.momentum) ** self.steps)
        return (1 - weight) * old + weight * new


class BatchEvaluationUpdates(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.update(*self.statistics(x), x.numel() // x.shape[1])
        return super().forward(x)


class BatchOverChannels(HandBatchNorm):
    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return moments(x, *range(1, x.dim()))

    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        super().update(mean.mean().expand(3), var.mean().expand(3), n)


class BatchPositionsApart(HandBatchNorm):
    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return moments(x, 0)

    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        axes = tuple(range(2, mean.dim()))
        super().update(mean.mean(axes), var.mean(axes), n)


class BatchUnbiasedInSinglePrecision(HandBatchNorm):
    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = super().statistics(x)
        n = x.numel() // x.shape[1]
        return mean, var * n / (n - 1) if x.dtype == torch.float32 else var


class BatchKeepsLastGraph(BatchBuffersInGraph):
    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        self.running_mean = self.running_mean.detach()
        self.running_var = self.running_var.detach()
        super().update(mean, var, n)


class BatchMadeWithFirst(BatchStatisticsNotBuffers):
    """Has None for statistics until it has seen a batch."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.running_mean = None

    def average(self, mean: Tensor, var: Tensor) -> None:
        if self.running_mean is None:
            self.running_mean, self.running_var = mean, var
        super().average(mean, var)


class BatchKeepsInverse(HandBatchNorm):
    """Right: evaluation multiplies by 1 / sigma, which training keeps ready."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.inverse: Any
        self.register_buffer("inverse", torch.full((num_features,), 1.00001**-0.5))

    def average(self, mean: Tensor, var: Tensor) -> None:
        super().average(mean, var)
        self.inverse = 1 / (self.running_var + self.eps).sqrt()

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        if self.training:
            return super().normalized(x, mean, var)
        return (x - mean) * along(self.inverse, x)


class BatchKeepsLastInput(HandBatchNorm):
    """Right: what it keeps for somebody to look at is no part of what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        self.last_input = x.detach()
        return super().forward(x)


class BatchUpdatesAttributeInEvaluation(BatchStatisticsNotBuffers):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not self.training:
            self.update(*self.statistics(x), x.numel() // x.shape[1])
        return y


class BatchCorrectedInEvaluation(HandBatchNorm):
    """Divided in evaluation by what the weights sum to; the count is no buffer."""

    steps = 0

    def average(self, mean: Tensor, var: Tensor) -> None:
        self.steps += 1
        super().average(mean, var)

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        if not self.training and self.steps:
            start = (1 - self.momentum) ** self.steps
            mean, var = mean / (1 - start), (var - start) / (1 - start)
        return super().normalized(x, mean, var)


class BatchCountIsNoBuffer(HandBatchNorm):
    """A plain average of all batches; state_dict forgets how many they were."""

    batches = 0

    def __init__(self, num_features: int):
        super().__init__(num_features)
        self.momentum: Any = None

    def average(self, mean: Tensor, var: Tensor) -> None:
        self.batches += 1
        self.running_mean = torch.lerp(self.running_mean, mean, 1 / self.batches)
        self.running_var = torch.lerp(self.running_var, var, 1 / self.batches)


class BatchWritesIntoInput(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        with torch.no_grad():
            x.clamp_(min=0)
        return y


class BatchGainWithoutGradient(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        gain, self.gamma.requires_grad = self.gamma.requires_grad, False
        y = super().forward(x)
        self.gamma.requires_grad = gain
        return y


class BatchRandom(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + torch.rand(()) * self.training)


class BatchGhosts(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or len(x) <= 4:
            return super().forward(x)
        of = super().forward
        return torch.cat([of(part) for part in torch.split(x, 4)])


class _ClosedForm(torch.autograd.Function):
    """Batch norm of (N, D) with its closed form, divided by m, sqrt(m) or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, root: bool, factor: float) -> Tensor:
        mean = x.mean(0)
        inv_std = 1 / (((x - mean) ** 2).mean(0) + eps).sqrt()
        x_hat = (x - mean) * inv_std
        ctx.save_for_backward(x_hat, inv_std)
        ctx.m, ctx.factor = len(x) ** 0.5 if root else len(x), factor
        return x_hat

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x_hat, inv_std = ctx.saved_tensors
        along = g.sum(0) / ctx.m + x_hat * (g * x_hat).sum(0) / ctx.m
        return ctx.factor * inv_std * (g - along), None, None, None


class BatchClosedForm(HandBatchNorm):
    """Right: the closed form as a function of its own."""

    root, factor = False, 1.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.dtype.itemsize == 2:
            return super().forward(x)
        self.check(x)
        self.update(*self.statistics(x), len(x))
        x_hat: Tensor = _ClosedForm.apply(x, self.eps, self.root, self.factor)  # type: ignore[no-untyped-call]
        return self.gamma * x_hat + self.beta


class HandLayerNorm(nn.Module):
    """Layer norm of the last axis, right in every respect."""

    def __init__(self, features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return moments(x, -1)

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return (x - mean) / (var + self.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize == 2:
            return HandLayerNorm.forward(self, x.float()).to(x.dtype)
        return self.gamma * self.normalized(x, *self.statistics(x)) + self.beta


class LayerWithoutParameters(nn.Module):
    factor, shift = 1, 0

    def __init__(self, features: int):
        super().__init__()
        self.normalized_shape = (features,)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize == 2:
            return self.forward(x.float()).to(x.dtype)
        mean, var = moments(x, -1)
        return self.factor * (x - mean) / (var + 1e-5).sqrt() + self.shift


class LayerOfLayer(HandLayerNorm):
    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        x_hat = super().normalized(x, mean, var)
        return super().normalized(x_hat, *self.statistics(x_hat))


class LayerPlainTensor(HandLayerNorm):
    """Cannot be moved to float64, as a tensor of it is neither parameter nor buffer."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.ones = torch.ones(features)

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.ones.shape, self.ones, eps=self.eps)


class LayerWithoutEps(HandLayerNorm):
    def __init__(self, features: int) -> None:
        super().__init__(features)
        del self.eps

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return (x - mean) / var.sqrt()


class LayerInPlace(HandLayerNorm):
    """Backward fails as well: var(x) needs the x that was overwritten."""

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return x.sub_(mean).div_((var + self.eps).sqrt())


class GroupInterleaved(nn.Module):
    """Channels 0 and 2 are a group, and 1 and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.num_groups, self.num_channels = 2, 4

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize == 2:
            return self.forward(x.float()).to(x.dtype)
        n, _, height, width = x.shape
        groups = x.reshape(n, 2, 2, height, width)
        mean, var = moments(groups, 1, 3, 4)
        return ((groups - mean) / (var + 1e-5).sqrt()).reshape(x.shape)


class LayerScalarGain(HandLayerNorm):
    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.gamma = nn.Parameter(torch.ones(()))
        self.features = nn.Buffer(torch.zeros(features))


class BatchAcceptsOne(HandBatchNorm):  # no bug, but told
    def check(self, x: Tensor) -> None:
        pass

    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        super().update(mean, var, max(n, 2))


class BatchSpoiledByOne(BatchAcceptsOne):
    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        mean, var = mean.detach().flatten(), var.detach().flatten()
        self.average(mean, var * n / torch.tensor(n - 1.0))


class BatchInHalf(HandBatchNorm):
    """Right in float32; in float16 squares overflow."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize > 2 or not self.training:
            return super().forward(x)
        mean = x.mean(0)
        var = ((x - mean) ** 2).mean(0)
        return (x - mean) / (var + self.eps).sqrt() * self.gamma + self.beta


class LayerInHalf(HandLayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x_hat = self.normalized(x, *self.statistics(x))
        return self.gamma * x_hat + self.beta


class LayerTinyEpsInHalf(HandLayerNorm):
    """The square is safe, and eps is 0 in float16."""

    def __init__(self, features: int) -> None:
        super().__init__(features, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float16:
            return super().forward(x)
        mean, var = self.statistics(x.float())
        x_hat = (x - mean.half()) / (var.sqrt().half() + self.eps)
        return self.gamma * x_hat + self.beta


class LayerViewsMemory(HandLayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, x.shape[-1])).view(x.shape)


class LayerReadsMemory(HandLayerNorm):
    """It takes the numbers in the order of memory."""

    def forward(self, x: Tensor) -> Tensor:
        strides = torch.empty(x.shape, device="meta").stride()
        return super().forward(x.as_strided(x.shape, strides))


class LayerKeepsFirstMean(HandLayerNorm):
    """The mean of the first call serves in all others."""

    kept: Any = None

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = super().statistics(x)
        if self.kept is None or self.kept.dtype != x.dtype:
            self.kept = mean.detach().mean()
        return mean + self.kept - mean.detach().mean(), var


class LayerOverwritesCache(HandLayerNorm):
    """What the backward pass needs is one tensor, written anew by each call."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.ones = torch.ones(())

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return super().normalized(x, mean, var) * self.ones.fill_(1.0)


class LayerReusesOutput(HandLayerNorm):
    """Without gradients all outputs are written into the memory of one."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y.requires_grad:
            return y
        out = vars(self).setdefault("out", y)
        vars(self)["out"] = out = out if out.shape == y.shape else y
        return out.copy_(y) if out.dtype == y.dtype else y


class BatchDetachedInEvaluation(HandBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.training else x.detach())


class BatchCachedAtEval(HandBatchNorm):
    """The statistics of the first evaluation serve in all others."""

    cached: Any = None

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        if not self.training:
            if self.cached is None or self.cached[0].dtype != x.dtype:
                self.cached = mean.clone(), var.clone()
            mean, var = self.cached
        return super().normalized(x, mean, var)


class LayerCachedAtEval(HandLayerNorm):
    """The gain as it was at the first evaluation serves in all others."""

    cached: Any = None

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        x_hat = super().normalized(x, mean, var)
        if self.training:
            return x_hat
        if self.cached is None or self.cached.dtype != x.dtype:
            self.cached = self.gamma.detach().clone()
        scaled: Tensor = x_hat * (self.cached / self.gamma.detach())
        return scaled


class BatchFixedUnderNoGrad(HandBatchNorm):
    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        if torch.is_grad_enabled():
            super().update(mean, var, n)


class BatchDriftsWhenFrozen(HandBatchNorm):
    """With frozen parameters the averages move twice as fast."""

    def mixed(self, old: Tensor, new: Tensor) -> Tensor:
        once = super().mixed(old, new)
        return once if self.gamma.requires_grad else super().mixed(once, new)


class BatchVarianceBeginsAtZero(HandBatchNorm):
    def register_statistics(self, mean: Tensor, var: Tensor) -> None:
        super().register_statistics(mean, torch.zeros_like(var))


class BatchSqueezesOne(HandBatchNorm):
    """An example alone is evaluated as what it deviates by from its own mean."""

    def normalized(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        x_hat = super().normalized(x, mean, var)
        return x_hat - x_hat.mean() if len(x) == 1 and not self.training else x_hat


class BatchOneImageByRunningStatistics(HandBatchNorm):
    """One example has no batch, somebody thought."""

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if len(x) == 1:
            return along(self.running_mean, x), along(self.running_var, x)
        return super().statistics(x)


batch, layer = HandBatchNorm.normalized, HandLayerNorm.normalized

# Bugs of one formula, by the class that has it right and the method in its place.
PLANTED: dict[tuple[type[nn.Module], str], dict[str, Any]] = {
    (HandBatchNorm, "normalized"): {
        "BatchSigmaPlusEps": lambda s, x, mean, var: (x - mean) / (var.sqrt() + s.eps),
        "BatchEpsInPlaceOfSmallSigma": lambda s, x, mean, var: (
            (x - mean) / var.sqrt().clamp_min(s.eps)
        ),
        "BatchWithoutEps": lambda s, x, mean, var: (x - mean) / var.sqrt(),
        "BatchDividesByVariance": lambda s, x, mean, var: (x - mean) / (var + s.eps),
        "BatchMeanNotSubtracted": lambda s, x, mean, var: x / (var + s.eps).sqrt(),
        "BatchGainAsOnePlus": lambda s, x, *of: (
            batch(s, x, *of) * along(1 + 1 / s.gamma, x)
        ),
        "BatchAbsoluteGain": lambda s, x, *of: (
            batch(s, x, *of) * along(s.gamma.detach().sign(), x)
        ),
        "BatchClampedGain": lambda s, x, *of: (
            batch(s, x, *of) * along(s.gamma.detach() > 0, x)
        ),
        "BatchClipped": lambda s, *of: batch(s, *of).clamp(-5, 5),
        # By a factor near that of the unbiased variance of 16 values, 0.968.
        "BatchScaled": lambda s, *of: 0.9 * batch(s, *of),
        "BatchOtherEpsInEvaluation": lambda s, x, mean, var: (
            (x - mean) / (var + (s.eps if s.training else 1e-2)).sqrt()
        ),
        "BatchEpsOutsideInEvaluation": lambda s, x, mean, var: (
            batch(s, x, mean, var) if s.training else (x - mean) / (var.sqrt() + s.eps)
        ),
        "BatchGainTwiceInEvaluation": lambda s, x, *of: (
            batch(s, x, *of) * (1 if s.training else along(s.gamma, x))
        ),
        "BatchOtherEvaluationInSinglePrecision": lambda s, x, mean, var: batch(
            s, x, mean, var * (1 if s.training or x.dtype == torch.float64 else 1.1)
        ),
        # Both factors are 1, with a gradient.
        "BatchGainGradientHalved": lambda s, x, *of: (
            batch(s, x, *of) * along((1 + s.gamma.detach() / s.gamma) / 2, x)
        ),
        "BatchGainGradientIsMean": lambda s, x, *of: (
            batch(s, x, *of)
            * along((s.gamma / s.gamma.detach()) ** (x.shape[1] / x.numel() - 1), x)
        ),
    },
    (HandBatchNorm, "statistics"): {
        "BatchStatisticsWithoutGradient": torch.no_grad()(HandBatchNorm.statistics),
        "BatchOnePassVariance": lambda _, x: one_pass(x, 0, *range(2, x.dim())),
    },
    (HandBatchNorm, "forward"): {
        "BatchNoBiasInEvaluation": lambda s, x: (
            HandBatchNorm.forward(s, x) - along(s.beta, x) * (not s.training)
        ),
        "BatchWithoutBias": lambda s, x: HandBatchNorm.forward(s, x) - along(s.beta, x),
        "BatchSinglePrecision": lambda s, x: HandBatchNorm.forward(s, x).float(),
        "BatchHalfBecomesSingle": lambda s, x: HandBatchNorm.forward(s, x).to(
            torch.float32 if x.dtype.itemsize == 2 else x.dtype
        ),
    },
    (HandBatchNorm, "uses_batch"): {
        "BatchModeFromGradMode": lambda _: torch.is_grad_enabled(),
        "BatchAlwaysByBatch": lambda _: True,
    },
    (HandBatchNorm, "update"): {"BatchWithoutAverages": lambda *_: None},
    (HandBatchNorm, "average"): {
        "BatchNotAnAverage": lambda s, mean, var: HandBatchNorm.average(
            s, mean.sort().values, var
        )
    },
    (HandBatchNorm, "mixed"): {
        "BatchMomentumReversed": lambda s, old, new: HandBatchNorm.mixed(s, new, old)
    },
    (HandBatchNorm, "mixed_var"): {
        "BatchVarianceWeightsReversed": lambda s, old, new: s.mixed(new, old),
        "BatchAveragedDeviation": lambda s, old, new: (
            s.mixed(old.sqrt(), new.sqrt()) ** 2
        ),
    },
    (BatchOverChannels, "statistics"): {
        "BatchOneMeanForAll": lambda _, x: (x.mean(), x.var())
    },
    (BatchClosedForm, "root"): {"BatchRootOfM": True},
    (BatchClosedForm, "factor"): {
        "BatchGradientTimes1000": 1000.0,
        "BatchGradientALittleOff": 1.0005,
    },
    (HandLayerNorm, "normalized"): {
        "LayerDoubled": lambda s, *of: 2 * layer(s, *of),
        "LayerSignFlipped": lambda s, *of: -layer(s, *of),
        "LayerRandom": lambda s, *of: (
            layer(s, *of) * (1 + 0.1 * torch.rand_like(of[0]))
        ),
        "LayerDetached": lambda s, *of: layer(s, *of).detach(),
        "LayerDividesByZero": lambda s, x, *of: (
            layer(s, x, *of) / (0 * x).sum(-1, True)
        ),
        "LayerSumOfSquares": lambda s, x, *of: (
            layer(s, x, *of) / math.sqrt(x.shape[-1])
        ),
        "LayerSigmaPlusEps": lambda s, x, mean, var: (x - mean) / (var.sqrt() + s.eps),
        # As in a widely copied text: unbiased, and eps added to sigma.
        "LayerTorchStd": lambda s, x, mean, _: (
            (x - mean) / (x.std(-1, keepdim=True) + s.eps)
        ),
        "LayerEpsOutsideInSinglePrecision": lambda s, x, mean, var: (
            (x - mean) / (var.sqrt() + s.eps)
            if x.dtype != torch.float64
            else layer(s, x, mean, var)
        ),
        # After the claim LN(a x) = LN(x) for all a: x is first made positive at front.
        "LayerSignLost": lambda s, *of: layer(s, *of) * layer(s, *of)[..., :1].sign(),
    },
    (HandLayerNorm, "statistics"): {
        "LayerWithoutGradient": torch.no_grad()(HandLayerNorm.statistics),
        "LayerOnePassVariance": lambda _, x: one_pass(x, -1),
        "LayerUnbiased": lambda _, x: (x.mean(-1, True), x.var(-1, keepdim=True)),
        "LayerOverTime": lambda _, x: moments(x, *range(1, x.dim())),
        "LayerOverBatch": lambda _, x: moments(x, 0, -1),
        # RMS norm under the name of layer norm.
        "LayerMeanNotSubtracted": lambda _, x: (0 * x, (x**2).mean(-1, keepdim=True)),
    },
    (HandLayerNorm, "forward"): {
        "LayerScaledInTraining": lambda s, x: (
            HandLayerNorm.forward(s, x) * (1 + s.training)
        )
    },
    (LayerWithoutEps, "normalized"): {
        # Right: eps is the smallest that float64, or float32, can tell from 0 beside 1.
        "LayerWithEpsOfType": lambda _, x, mean, var: (
            (x - mean) / (var + torch.finfo(x.dtype).eps).sqrt()
        )
    },
    (LayerWithoutParameters, "shift"): {"LayerPlusOneWithoutParameters": 1},
    (LayerWithoutParameters, "factor"): {"LayerDoubledWithoutParameters": 2},
}
# Under their names, so that pickle finds them.
globals().update(
    (name, type(name, (of,), {method: bug}))
    for (of, method), bugs in PLANTED.items()
    for name, bug in bugs.items()
)
