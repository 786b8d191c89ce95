"""Audit a sixth set of public models, chosen by somebody who saw no audit.

As `audit_fifth.py`: some of the models have been trained a little, others have had
batches passed in training mode, the others are as they were built. It needs what that
needs, and what `audit_sixth.txt` lists.
"""

from __future__ import annotations

import importlib
import os
from typing import Any
from unittest import mock

import torch

# The first of these, as it lets torchvision be imported.
from audit_fifth import bare, fit, passes
from audit_fourth import standins
from audit_models import compare
from torch import nn

# fmt: off
R = torch.randn
U = torch.rand
integers = torch.randint
PACKAGES = (
    "nfnets-pytorch", "byol-pytorch", "minGRU-pytorch", "torch-mimicry", "pypots",
    "ctgan", "skrl", "agilerl", "rl-games", "imitation", "di-engine", "matcha-tts",
    "fastmri", "brevitas", "complexPyTorch", "torchcvnn", "bayesian-torch",
    "spd-learn", "hypll", "avalanche-lib", "torchcfm", "skillful-nowcasting",
    "joeynmt", "antialiased-cnns", "peft", "keras", "pytabkit", "snntorch",
    "the-well", "grelu", "backgroundremover", "vn-transformer", "gfpgan",
    "make-a-video-pytorch", "bitorch", "timm", "transformers", "diffusers",
    "torch-geometric", "monai", "speechbrain", "segmentation_models_pytorch",
    "FrEIA",
)
SMALL = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 128,
}


def made(m, mk, train=0, batches=0) -> Any:
    """Return a model and its input; train it before, or pass batches."""
    if train:
        fit(m, mk, train)
    if batches:
        passes(m, mk, batches)
    return m, mk()


def public(where, build, mk, bares="", absent="", train=0, batches=0) -> Any:
    """Return a factory of a model that is built from what a module has."""

    def make():
        for package in bares.split():
            bare(package)
        with standins(*absent.split()):
            module = importlib.import_module(where)
        return made(build(module), mk, train, batches)

    return make


def timm_(name, train=0, batches=0) -> Any:
    """Return a factory of a model of timm."""
    return public(
        "timm", lambda p: p.create_model(name, pretrained=False, num_classes=10),
        lambda: R(8, 3, 64, 64), train=train, batches=batches,
    )


def hf(kind, head, mk=None, train=0, batches=0, **k) -> Any:
    """Return a factory of a model of transformers."""

    def build(p):
        return getattr(p, kind + head)(getattr(p, kind + "Config")(**k))

    mk = mk or (lambda: {"input_ids": integers(3, 90, (8, 12))})
    return public("transformers", build, mk, train=train, batches=batches)


def nfnet() -> Any:
    """Make a ResNet without norms, of nfnets-pytorch."""
    with mock.patch("collections.Iterable", list, create=True):
        from nfnets.models.resnet import BasicBlock, NFResNet

    m = NFResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    return made(m, lambda: R(8, 3, 64, 64), train=20)


def byol() -> Any:
    """Make BYOL."""
    import timm
    from byol_pytorch import BYOL

    net = timm.create_model("resnet10t", num_classes=10)
    m = BYOL(net, 32, hidden_layer="global_pool", projection_size=32,
             projection_hidden_size=64)
    opt = torch.optim.Adam(m.parameters(), 3e-4)
    for _ in range(20):
        loss = m(U(8, 3, 32, 32))
        opt.zero_grad()
        loss.backward()
        opt.step()
        m.update_moving_average()
    return m, U(8, 3, 32, 32)


def pots_modern_tcn() -> Any:
    """Make ModernTCN of pypots."""
    with standins("tsdb", "pygrinder", "benchpots", "ai4ts", "h5py"):
        from pypots.imputation.moderntcn.core import _ModernTCN
        from pypots.nn.modules.loss import MAE, MSE
    m = _ModernTCN(
        n_steps=24, n_features=4, patch_size=4, patch_stride=2, downsampling_ratio=2,
        ffn_ratio=2, num_blocks=[1, 1], large_size=[9, 9], small_size=[5, 5],
        dims=[16, 16], small_kernel_merged=False, backbone_dropout=0.1,
        head_dropout=0.1, use_multi_scale=False, individual=False,
        apply_nonstationary_norm=True, training_loss=MAE(), validation_metric=MSE(),
    )

    def mk():
        mask = (U(16, 24, 4) < 0.8).float()
        return {"inputs": {"X": R(16, 24, 4).cumsum(1) * mask, "missing_mask": mask}}

    return made(m, mk, train=20)


def skrl_scaler() -> Any:
    """Make a policy behind the preprocessor of skrl."""
    from skrl.resources.preprocessors.torch import RunningStandardScaler

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaler = RunningStandardScaler(size=8, device="cpu")
            self.net = nn.Sequential(
                nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(),
                nn.Linear(32, 3),
            )

        def forward(self, observations):
            return self.net(self.scaler(observations, train=self.training).float())

    return made(Policy(), lambda: R(64, 8) * 5 + 3, train=20)


def rl_games() -> Any:
    """Make an actor and critic of rl_games, as a player calls it."""
    with standins("gym", "ray", "envpool", "wandb", "tensorboardX", "setproctitle"):
        from rl_games.algos_torch.models import ModelA2CContinuousLogStd
        from rl_games.algos_torch.network_builder import A2CBuilder
    none = {"name": "default"}
    builder = A2CBuilder()
    builder.load({
        "name": "actor_critic", "separate": False, "normalization": "layer_norm",
        "space": {"continuous": {
            "mu_activation": "None", "sigma_activation": "None", "mu_init": none,
            "sigma_init": {"name": "const_initializer", "val": 0},
            "fixed_sigma": True,
        }},
        "mlp": {"units": [64, 32], "activation": "elu", "initializer": none},
    })

    class Player(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = ModelA2CContinuousLogStd(builder).build({
                "actions_num": 3, "input_shape": (8,), "num_seqs": 1, "value_size": 1,
                "normalize_value": True, "normalize_input": True,
            })

        def forward(self, obs):
            out = self.model({"is_train": False, "prev_actions": None, "obs": obs})
            return out["mus"], out["sigmas"], out["values"]

    return made(Player(), lambda: R(64, 8) * 3 - 1, batches=10)


def complex_pytorch() -> Any:
    """Make the net of the README of complexPyTorch."""
    from complexPyTorch import complexFunctions as F
    from complexPyTorch import complexLayers as L

    class ComplexNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = L.ComplexConv2d(1, 8, 5, 1)
            self.bn2d = L.ComplexBatchNorm2d(8, track_running_stats=True)
            self.conv2 = L.ComplexConv2d(8, 8, 5, 1)
            self.fc1 = L.ComplexLinear(5 * 5 * 8, 32)
            self.bn1d = L.ComplexBatchNorm1d(32)
            self.fc2 = L.ComplexLinear(32, 10)

        def forward(self, x):
            x = F.complex_max_pool2d(F.complex_relu(self.conv1(x)), 2, 2)
            x = F.complex_relu(self.conv2(self.bn2d(x)))
            x = F.complex_max_pool2d(x, 2, 2).view(-1, 5 * 5 * 8)
            x = self.fc2(F.complex_relu(self.bn1d(self.fc1(x)))).abs()
            return x.log_softmax(1)

    return made(ComplexNet(), lambda: R(32, 1, 32, 32).to(torch.complex64), train=20)


def torchcvnn_vit() -> Any:
    """Make a complex ViT of torchcvnn."""
    bare("torchcvnn")
    import torchcvnn.nn as cn

    class Embedder(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                cn.LayerNorm([1, 16, 16]),
                nn.Conv2d(1, 32, 4, 4, dtype=torch.complex64),
                cn.BatchNorm2d(32),
            )

        def forward(self, x):
            return self.net(x).flatten(2).transpose(1, 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = cn.ViT(Embedder(), 2, 4, 32, 64, norm_layer=cn.RMSNorm)
            self.head = nn.Linear(32, 5, dtype=torch.complex64)

        def forward(self, x):
            return self.head(self.vit(x).mean(1)).abs()

    return made(Net(), lambda: R(8, 1, 16, 16, dtype=torch.complex64), batches=6)


def hyperbolic() -> Any:
    """Make a Poincare net of hypll."""
    from hypll import nn as hnn
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall
    from hypll.tensors import TangentTensor

    ball = PoincareBall(c=Curvature(requires_grad=True))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = hnn.HConvolution2d(3, 8, 3, manifold=ball, padding=1)
            self.bn = hnn.HBatchNorm2d(8, manifold=ball, use_midpoint=True)
            self.relu = hnn.HReLU(manifold=ball)
            self.pool = hnn.HMaxPool2d(8, manifold=ball, stride=8)
            self.fc = hnn.HLinear(8, 5, manifold=ball)

        def forward(self, x):
            x = ball.expmap(TangentTensor(x, man_dim=1, manifold=ball))
            x = self.pool(self.relu(self.bn(self.conv(x))))
            return self.fc(x.flatten(start_dim=1)).tensor

    return made(Net(), lambda: R(8, 3, 8, 8) * 0.3)


def avalanche_renorm() -> Any:
    """Make a convolutional net with batch renormalization of avalanche."""
    bare("avalanche")
    bare("avalanche.models")
    from avalanche.models.batch_renorm import BatchRenorm2D

    def cbr(i, o, s):
        return [nn.Conv2d(i, o, 3, s, 1, bias=False),
                BatchRenorm2D(o, momentum=0.01, r_d_max_inc_step=1e-3, max_r_max=3.0,
                              max_d_max=5.0), nn.ReLU()]

    m = nn.Sequential(*cbr(3, 16, 1), *cbr(16, 32, 2), *cbr(32, 32, 2),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return made(m, lambda: R(16, 3, 32, 32), train=25)


def lora() -> Any:
    """Make a Roberta with LoRA, of peft."""
    from peft import LoraConfig, get_peft_model
    from transformers import RobertaConfig, RobertaForSequenceClassification

    base = RobertaForSequenceClassification(
        RobertaConfig(**SMALL, max_position_embeddings=40, num_labels=3)
    )
    m = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4,
                                        target_modules=["query", "value"]))
    return made(m, lambda: {"input_ids": integers(3, 90, (8, 12))}, train=25)


def keras_net() -> Any:
    """Make a convolutional net of keras, on torch."""
    os.environ["KERAS_BACKEND"] = "torch"
    with standins("h5py"):
        import keras
    from keras import layers as k

    m = keras.Sequential([
        keras.Input((16, 16, 3)), k.Conv2D(16, 3), k.BatchNormalization(),
        k.Activation("relu"), k.Conv2D(16, 3), k.GroupNormalization(4),
        k.Activation("relu"), k.GlobalAveragePooling2D(), k.LayerNormalization(),
        k.Dense(10),
    ])
    return m, R(16, 16, 16, 3)


def snn() -> Any:
    """Make a spiking convolutional net with snntorch."""
    with standins("nir", "nirtorch"):
        import snntorch as snn_

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.lif1 = snn_.Leaky(beta=0.9)
            self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16)
            self.lif2 = snn_.Leaky(beta=0.9)
            self.fc = nn.Linear(16 * 64, 5)

        def forward(self, x):
            m1, m2 = self.lif1.init_leaky(), self.lif2.init_leaky()
            out = []
            for _ in range(4):
                s1, m1 = self.lif1(self.bn1(self.conv1(x)), m1)
                s2, m2 = self.lif2(self.bn2(self.conv2(s1)), m2)
                out.append(self.fc(s2.flatten(1)))
            return torch.stack(out)

    return made(Net(), lambda: R(16, 1, 16, 16), train=20)


def dna() -> Any:
    """Return DNA, one-hot."""
    return nn.functional.one_hot(integers(0, 4, (8, 96)), 4).float().transpose(1, 2)


def nowcast() -> Any:
    """Return the states of four scales, and a latent."""
    states = [R(4, 4 * 2**i, 16 // 2**i, 16 // 2**i) for i in range(4)]
    return states, R(1, 64, 2, 2)


def translation() -> Any:
    """Return what a decoder of joeynmt takes."""
    mask = torch.arange(9) < torch.tensor([9, 7, 5, 8])[:, None]
    return {
        "trg_embed": R(4, 6, 32), "encoder_output": R(4, 9, 32),
        "src_mask": mask[:, None], "trg_mask": torch.ones(4, 1, 6).bool(),
        "encoder_hidden": None, "unroll_steps": None, "hidden": None,
    }


def mel() -> Any:
    """Return noise, a mask, a mean and times."""
    mask = torch.arange(24) < torch.tensor([24, 18, 12, 20])[:, None]
    return {"x": R(4, 8, 24), "mask": mask[:, None].float(), "mu": R(4, 8, 24),
            "t": U(4)}


def series() -> Any:
    """Return what TimeSeriesTransformer takes."""
    return {
        "past_values": R(16, 14).cumsum(1) + 5, "past_time_features": R(16, 14, 1),
        "past_observed_mask": torch.ones(16, 14), "future_values": R(16, 6),
        "future_time_features": R(16, 6, 1),
    }


def speech() -> Any:
    """Return what SpeechT5 takes."""
    return {"input_ids": integers(4, 40, (4, 10)), "speaker_embeddings": R(4, 8),
            "decoder_input_values": R(4, 12, 16)}


def captions() -> Any:
    """Return what Lumina 2 takes."""
    return {"hidden_states": R(2, 4, 8, 8), "timestep": U(2),
            "encoder_hidden_states": R(2, 6, 16),
            "encoder_attention_mask": torch.ones(2, 6).bool()}


def gps() -> Any:
    """Make a GraphGPS net of torch_geometric."""
    from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

    def mlp():
        return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pe_norm = nn.BatchNorm1d(6)
            self.inside, self.edge = nn.Linear(8 + 6, 32), nn.Embedding(4, 32)
            self.convs = nn.ModuleList(
                GPSConv(32, GINEConv(mlp()), heads=4) for _ in range(2)
            )
            self.out = nn.Linear(32, 1)

        def forward(self, x, pe, edge_index, edge_attr, batch):
            x = self.inside(torch.cat([x, self.pe_norm(pe)], 1))
            e = self.edge(edge_attr)
            for conv in self.convs:
                x = conv(x, edge_index, batch, edge_attr=e)
            return self.out(global_add_pool(x, batch))

    def mk():
        e = torch.cat([integers(0, 10, (2, 24)) + 10 * i for i in range(8)], 1)
        return {"x": R(80, 8), "pe": R(80, 6), "edge_index": e,
                "edge_attr": integers(0, 4, (e.shape[1],)),
                "batch": torch.arange(8).repeat_interleave(10)}

    return made(Net(), mk, train=20)


def hetero() -> Any:
    """Make a net of torch_geometric that normalizes each type of node."""
    from torch_geometric.nn import HeteroBatchNorm, HeteroLinear, SAGEConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = HeteroLinear(8, 32, 3)
            self.norm = HeteroBatchNorm(32, 3)
            self.conv = SAGEConv(32, 5, normalize=True)

        def forward(self, x, kind, edge_index):
            x = self.norm(self.lin(x, kind), kind).relu()
            return self.conv(x, edge_index)

    def mk():
        return (R(90, 8) * 2 + 1, torch.arange(90) % 3, integers(0, 90, (2, 300)))

    return made(Net(), mk, batches=10)


def freia() -> Any:
    """Make an invertible net of FrEIA."""
    import FrEIA.framework as Ff
    import FrEIA.modules as Fm

    def sub(i, o):
        return nn.Sequential(nn.Linear(i, 32), nn.ReLU(), nn.Linear(32, o))

    m = Ff.SequenceINN(8)
    for _ in range(3):
        m.append(Fm.ActNorm)
        m.append(Fm.AllInOneBlock, subnet_constructor=sub, permute_soft=True)
    return made(m, lambda: R(64, 8) * 3 + 1, train=20)


MODELS = {
    # packages not met before
    "nfnets_NFResNet": nfnet,
    "byol": byol,
    "minGRU_minLM": public(
        "minGRU_pytorch.minLM",
        lambda p: p.minLM(num_tokens=50, dim=32, depth=3, enable_conv=True),
        lambda: integers(0, 50, (8, 20)), train=25),
    "mimicry_CGANPD_generator": public(
        "torch_mimicry.nets.cgan_pd.cgan_pd_32",
        lambda p: p.CGANPDGenerator32(num_classes=5, ngf=32, nz=32),
        lambda: (R(16, 32), integers(0, 5, (16,))),
        absent="tensorflow skimage torch._six", batches=8),
    "mimicry_SSGAN_discriminator": public(
        "torch_mimicry.nets.ssgan.ssgan_32", lambda p: p.SSGANDiscriminator32(ndf=32),
        lambda: R(8, 3, 32, 32), absent="tensorflow skimage torch._six"),
    "pypots_ModernTCN": pots_modern_tcn,
    "ctgan_generator": public(
        "ctgan.synthesizers.ctgan", lambda p: p.Generator(32, (64, 64), 20),
        lambda: R(64, 32), absent="rdt", train=30),
    "skrl_RunningStandardScaler": skrl_scaler,
    "agilerl_SimBa": public(
        "agilerl.modules.simba",
        lambda p: p.EvolvableSimBa(12, 4, hidden_size=32, num_blocks=2),
        lambda: R(64, 12), absent="minari pettingzoo flatten_dict redis"),
    "rl_games_A2C": rl_games,
    "imitation_RunningNorm": public(
        "imitation.util.networks",
        lambda p: p.build_mlp(10, (32, 32), normalize_input_layer=p.RunningNorm,
                              squeeze_output=True),
        lambda: R(64, 10) * 4 + 2, "imitation imitation.util", train=25),
    "ding_LSTM": public(
        "ding.torch_utils.network.rnn",
        lambda p: p.get_lstm("normal", 32, 32, num_layers=2, norm_type="LN"),
        lambda: (R(10, 16, 32), None), "ding.torch_utils ding.torch_utils.network",
        "treetensor"),
    "matcha_decoder": public(
        "matcha.models.components.decoder",
        lambda p: p.Decoder(16, 8, channels=(32, 32), attention_head_dim=8, num_heads=2,
                            num_mid_blocks=1, act_fn="snakebeta"),
        mel, "matcha matcha.models matcha.models.components", train=20),
    "fastmri_Unet": public(
        "fastmri.models.unet",
        lambda p: p.Unet(1, 1, chans=8, num_pool_layers=3, drop_prob=0.1),
        lambda: R(4, 1, 32, 32), "fastmri fastmri.models"),
    "brevitas_MobileNet": public(
        "brevitas_examples.imagenet_classification.models.mobilenetv1",
        lambda p: p.MobileNet([[16], [32], [32, 32], [64, 64]], False, 4, 4,
                              avg_pool_kernel_size=4, num_classes=10),
        lambda: R(16, 3, 32, 32), train=20),
    "complexPyTorch_net": complex_pytorch,
    "torchcvnn_ViT": torchcvnn_vit,
    "bayesian_torch_ResNet": public(
        "bayesian_torch.models.bayesian.resnet_variational",
        lambda p: p.ResNet(p.BasicBlock, [1, 1, 1]), lambda: R(8, 3, 32, 32)),
    "spd_learn_TSMNet": public(
        "spd_learn.models",
        lambda p: p.TSMNet(n_chans=6, n_temp_filters=4, n_spatiotemp_filters=16,
                           n_bimap_filters=8, n_outputs=3),
        lambda: R(16, 6, 128), absent="nilearn", train=20),
    "hypll_HBatchNorm2d": hyperbolic,
    "avalanche_BatchRenorm2D": avalanche_renorm,
    "torchcfm_UNet": public(
        "torchcfm.models.unet.unet",
        lambda p: p.UNetModelWrapper(
            (3, 16, 16), 32, 1, channel_mult=(1, 2), class_cond=True, num_classes=5,
            attention_resolutions="8", num_heads=2, use_scale_shift_norm=True,
            resblock_updown=True),
        lambda: {"t": U(4), "x": R(4, 3, 16, 16), "y": integers(0, 5, (4,))},
        "torchcfm torchcfm.models", train=20),
    "nowcasting_Sampler": public(
        "skillful_nowcasting.generators",
        lambda p: p.Sampler(2, latent_channels=64, context_channels=32), nowcast,
        "skillful_nowcasting", batches=6),
    "joeynmt_decoder": public(
        "joeynmt.decoders",
        lambda p: p.TransformerDecoder(num_layers=2, num_heads=4, hidden_size=32,
                                       ff_size=64, vocab_size=50, layer_norm="post"),
        translation, absent="sacrebleu subword_nmt datasets sacremoses"),
    "antialiased_ResNet": public(
        "antialiased_cnns.resnet",
        lambda p: p.ResNet(p.BasicBlock, [1, 1, 1, 1], num_classes=10, filter_size=4),
        lambda: R(8, 3, 64, 64)),
    "peft_LoRA_Roberta": lora,
    "keras_Sequential": keras_net,
    "pytabkit_ResNet": public(
        "pytabkit.models.nn_models.rtdl_resnet",
        lambda p: p.ResNet(
            d_in=8, categories=None, d_embedding=8, d=32, d_hidden_factor=2, n_layers=2,
            activation="reglu", normalization="batchnorm", hidden_dropout=0.1,
            residual_dropout=0.1, d_out=3, regression=True, categorical_indicator=None),
        lambda: R(64, 8) * 3 + 2, "pytabkit pytabkit.models pytabkit.models.nn_models",
        "wandb dask ray", train=30),
    "snntorch_net": snn,
    "the_well_UNetConvNext": public(
        "the_well.benchmark.models.unet_convnext",
        lambda p: p.UNetConvNext(3, 3, 2, (32, 32), stages=2, blocks_per_stage=1,
                                 blocks_at_neck=1, init_features=16),
        lambda: R(4, 3, 32, 32),
        "the_well the_well.benchmark the_well.benchmark.models"),
    "grelu_ConvTransformer": public(
        "grelu.model.trunks",
        lambda p: p.ConvTransformerTrunk(
            stem_channels=16, n_conv=3, channel_init=16, channel_mult=1.5, norm=True,
            pool_func="max", pool_size=2, n_transformers=1, n_heads=2, n_pos_features=8,
            key_len=8, value_len=8),
        dna, "grelu grelu.model", "polars pyfaidx", batches=8),
    "u2netp": public(
        "backgroundremover.u2net.u2net", lambda p: p.U2NETP(3, 1),
        lambda: R(4, 3, 64, 64), "backgroundremover backgroundremover.u2net"),
    "vn_transformer": public(
        "VN_transformer",
        lambda p: p.VNTransformer(dim=16, depth=2, dim_head=8, heads=2, dim_feat=8,
                                  bias_epsilon=1e-6),
        lambda: {"coors": R(4, 16, 3), "feats": R(4, 16, 8)}),
    "gfpgan_StyleGAN2": public(
        "gfpgan.archs.stylegan2_clean_arch",
        lambda p: p.StyleGAN2GeneratorClean(16, 32, 2, 1, narrow=0.1),
        lambda: {"styles": [R(4, 32)], "randomize_noise": False},
        "gfpgan gfpgan.archs", "cv2"),
    "make_a_video_Unet": public(
        "make_a_video_pytorch",
        lambda p: p.SpaceTimeUnet(
            dim=16, channels=3, dim_mult=(1, 2), self_attns=(False, True),
            temporal_compression=(False, True), resnet_block_depths=(1, 1),
            attn_dim_head=8, attn_heads=2),
        lambda: {"x": R(2, 3, 4, 16, 16), "timestep": U(2)}),
    "bitorch_QuickNet": public(
        "bitorch.models",
        lambda p: p.QuickNet([1, 3, 32, 32], [16, 16, 32, 32], [1, 1, 1, 1], 10),
        lambda: R(8, 3, 32, 32), absent="bitorchinfo", batches=8),
    # packages met before
    "timm_edgenext_xx_small": timm_("edgenext_xx_small"),
    "timm_pvt_v2_b0": timm_("pvt_v2_b0"),
    "hf_Lfm2": hf("Lfm2", "ForCausalLM", train=20, **SMALL, num_key_value_heads=2,
                  layer_types=["conv", "full_attention", "conv"]),
    "hf_Swin2SR": hf("Swin2SR", "ForImageSuperResolution",
                     lambda: {"pixel_values": U(4, 3, 16, 16)}, embed_dim=24,
                     depths=[2, 2], num_heads=[2, 2], window_size=4, image_size=16),
    "hf_TimeSeriesTransformer": hf(
        "TimeSeriesTransformer", "ForPrediction", series, train=20, prediction_length=6,
        context_length=12, lags_sequence=[1, 2], d_model=32, num_time_features=1,
        scaling="std", encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64),
    "hf_SpeechT5": hf(
        "SpeechT5", "ForTextToSpeech", speech, batches=8, vocab_size=40, hidden_size=32,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        num_mel_bins=16, speech_decoder_prenet_units=32, speaker_embedding_dim=8,
        speech_decoder_postnet_units=16, speech_decoder_postnet_layers=3),
    "hf_ClapAudio": hf(
        "ClapAudio", "Model", lambda: {"input_features": R(4, 1, 256, 16) * 20 - 40},
        spec_size=64, num_mel_bins=16, hidden_size=64, patch_embeds_hidden_size=16,
        depths=[1, 1, 1], num_attention_heads=[2, 2, 2], window_size=4, patch_size=4,
        patch_stride=[4, 4], num_hidden_layers=3),
    "diffusers_Lumina2": public(
        "diffusers", lambda p: p.Lumina2Transformer2DModel(
            sample_size=8, patch_size=2, in_channels=4, hidden_size=32, num_layers=2,
            num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=16,
            axes_dim_rope=(4, 2, 2), axes_lens=(32, 16, 16), cap_feat_dim=16),
        captions),
    "diffusers_AutoencoderKLCogVideoX": public(
        "diffusers", lambda p: p.AutoencoderKLCogVideoX(
            down_block_types=("CogVideoXDownBlock3D",) * 2, latent_channels=4,
            up_block_types=("CogVideoXUpBlock3D",) * 2, block_out_channels=(16, 16),
            layers_per_block=1, norm_num_groups=4, temporal_compression_ratio=1),
        lambda: R(1, 3, 2, 16, 16)),
    "diffusers_AutoencoderOobleck": public(
        "diffusers", lambda p: p.AutoencoderOobleck(16, [2, 4], [1, 2], 16, 8, 2),
        lambda: R(4, 2, 256), train=20),
    "pyg_GPSConv": gps,
    "pyg_HeteroBatchNorm": hetero,
    "monai_DiffusionModelUNet": public(
        "monai.networks.nets", lambda p: p.DiffusionModelUNet(
            2, 1, 1, num_res_blocks=(1, 1), channels=(16, 32), num_head_channels=8,
            attention_levels=(False, True), norm_num_groups=4, with_conditioning=True,
            cross_attention_dim=8),
        lambda: {"x": R(4, 1, 16, 16), "context": R(4, 3, 8),
                 "timesteps": integers(0, 1000, (4,))}),
    "speechbrain_HifiGAN": public(
        "speechbrain.lobes.models.HifiGAN",
        lambda p: p.HifiganGenerator(16, 1, "1", [[1, 3, 5]] * 2, [3, 5], [8, 4], 32,
                                     [4, 2]),
        lambda: R(4, 16, 24), absent="torchaudio"),
    "speechbrain_Xvector": public(
        "speechbrain.lobes.models.Xvector",
        lambda p: p.Xvector(tdnn_blocks=3, tdnn_channels=[32, 32, 64], lin_neurons=16,
                            tdnn_kernel_sizes=[5, 3, 1], tdnn_dilations=[1, 2, 1],
                            in_channels=20),
        lambda: (R(8, 40, 20), torch.linspace(0.5, 1, 8)), absent="torchaudio",
        batches=8),
    "smp_Linknet_mobilenetv3": public(
        "segmentation_models_pytorch",
        lambda p: p.Linknet("timm-mobilenetv3_small_minimal_100", encoder_weights=None,
                            classes=3),
        lambda: R(8, 3, 64, 64)),
    "FrEIA_ActNorm": freia,
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
