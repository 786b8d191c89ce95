"""Audit a seventh set of public models, chosen by somebody who saw no audit.

As `audit_sixth.py`: some of the models have been trained a little, others have had
batches passed in training mode, the others are as they were built. It needs what that
needs, and what `audit_seventh.txt` lists.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from typing import Any

import torch

# The first of these, as it lets torchvision be imported.
from audit_fifth import bare
from audit_fourth import standins
from audit_models import compare
from audit_sixth import SMALL, R, U, hf, integers, made, public, timm_
from torch import nn

# fmt: off
PACKAGES = (
    "efficientnet-pytorch", "seisbench", "weaver-core", "dingo-gw", "ml4gw", "scgpt",
    "LightZero", "lerobot", "torch-harmonics", "cliffordlayers", "azula",
    "score-models", "opacus", "sockeye", "kraken", "xuance", "torchtuples",
    "face-alignment", "facexlib", "pygod", "easyfsl", "instanseg-torch", "elektronn3",
    "lightning-bolts", "mambular", "torchfcpe", "basicts", "torchgeo", "timm",
    "transformers", "diffusers", "torch-geometric", "monai", "speechbrain", "kornia",
)


def img(n=8, c=3, s=64) -> Any:
    """Return what makes images."""
    return lambda: R(n, c, s, s)


def seisbench() -> Any:
    """Make EQTransformer of seisbench."""
    os.environ.setdefault("SEISBENCH_CACHE_ROOT", tempfile.mkdtemp())
    bare("seisbench.models")
    with standins("obspy", "bottleneck", "nest_asyncio", "h5py", "boto3", "lxml"):
        from seisbench.models.eqtransformer import EQTransformer
    return EQTransformer(in_samples=1024, norm="std"), R(4, 3, 1024)


def jets() -> Any:
    """Return points, features and a mask of jets of several sizes."""
    mask = (torch.arange(20) < integers(8, 21, (16, 1)))[:, None].float()
    return R(16, 2, 20) * mask, (R(16, 7, 20) * 3 + 1) * mask, mask


def four_vectors() -> Any:
    """Return features, momenta and a mask of jets."""
    mask = (torch.arange(12) < integers(6, 13, (8, 1)))[:, None]
    p = R(8, 3, 12)
    v = torch.cat([p, (p.pow(2).sum(1, keepdim=True) + 0.1).sqrt()], 1) * mask
    return {"x": R(8, 7, 12) * mask, "v": v, "mask": mask}


def scgpt() -> Any:
    """Make scGPT with norms of their own for each batch of cells."""
    bare("scgpt")
    bare("scgpt.model")
    from scgpt.model.model import TransformerModel

    m = TransformerModel(
        60, 32, 4, 64, 2, vocab={"<pad>": 0}, dropout=0.1, use_batch_labels=True,
        num_batch_labels=2, domain_spec_batchnorm="dsbn",
    )

    def mk():
        pad = torch.zeros(16, 20).bool()
        pad[:5, 16:] = True
        return {"src": integers(0, 60, (16, 20)), "values": U(16, 20) * 5,
                "src_key_padding_mask": pad,
                "batch_labels": integers(0, 2, (1,)).expand(16)}

    return made(m, mk, train=20)


def muzero() -> Any:
    """Make MuZero of lightzero, unrolled for a few steps."""
    bare("lzero")
    bare("lzero.model")
    with standins("ditk", "treetensor", "hbutils", "hickle", "pympler", "trueskill",
                  "responses", "urlobject", "redis", "kazoo", "flask", "bitmath",
                  "enum_tools", "gym", "pettingzoo", "tensorboardX", "wandb",
                  "mpire", "tabulate"):
        from lzero.model.muzero_model import MuZeroModel

    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = MuZeroModel(
                (3, 8, 8), 4, num_channels=16, reward_support_size=21,
                value_support_size=21, proj_hid=32, proj_out=32, pred_hid=16,
                pred_out=32, self_supervised_learning_loss=True,
            )

        def forward(self, obs, actions):
            out = self.model.initial_inference(obs)
            outs = [out.value, out.policy_logits]
            for a in actions.unbind(1):
                out = self.model.recurrent_inference(out.latent_state, a)
                outs += [out.value, out.policy_logits, out.reward]
            return [*outs, self.model.project(out.latent_state)]

    return made(Unrolled(), lambda: (R(16, 3, 8, 8), integers(0, 4, (16, 3))), train=20)


def diffusion_policy() -> Any:
    """Make the net of the diffusion policy of lerobot."""
    bare("lerobot")
    bare("lerobot.policies")
    with standins("av", "rerun", "serial", "deepdiff", "jsonlines", "datasets",
                  "pyarrow", "torchcodec", "imageio", "termcolor"):
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.diffusion import modeling_diffusion as d
    config = d.DiffusionConfig(
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (6,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        horizon=8, down_dims=(32, 64), n_groups=8, n_action_steps=4, device="cpu",
        diffusion_step_embed_dim=16,
    )
    return made(d.DiffusionConditionalUnet1d(config, 12), lambda: {
        "x": R(8, 8, 4), "timestep": integers(0, 100, (8,)), "global_cond": R(8, 12),
    }, train=20)


def opacus_resnet() -> Any:
    """Make a ResNet whose norms opacus has replaced."""
    from opacus.validators import ModuleValidator
    from torchvision.models.resnet import BasicBlock, ResNet

    m = ModuleValidator.fix(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10))
    return made(m.train(), img(), train=20)


def sockeye() -> Any:
    """Make the encoder of sockeye."""
    from sockeye.encoder import TransformerEncoder
    from sockeye.transformer import TransformerConfig

    m = TransformerEncoder(TransformerConfig(
        model_size=32, attention_heads=4, feed_forward_num_hidden=64, act_type="swish1",
        num_layers=2, dropout_attention=0.1, dropout_act=0.1, dropout_prepost=0.1,
        positional_embedding_type="fixed", preprocess_sequence="n",
        postprocess_sequence="dr", max_seq_len_source=20, max_seq_len_target=20,
        use_glu=True))
    return made(m, lambda: (R(4, 10, 32), torch.tensor([[10, 10], [7, 7], [9, 9],
                                                        [4, 4]])))


def kraken() -> Any:
    """Make a segmenter of kraken, as its default, narrower."""
    with standins("coremltools", "htrmopo", "shapely", "pyarrow", "bidi",
                  "skimage", "rich", "lxml", "cv2", "iso639"):
        bare("kraken")
        from kraken.lib.vgsl import TorchVGSLModel
    m = TorchVGSLModel(vgsl=(
        "[1,64,0,3 Cr7,7,16,2,2 Gn8 Cr3,3,32,2,2 Gn8 Cr3,3,32 Gn8 Lbx8 Lby8 Cr1,1,8 "
        "Gn8 Lby8 Lbx8 O2l4]"))
    return m, R(4, 3, 64, 64)


def xuance_mlp() -> Any:
    """Make an actor of xuance with layer norms."""
    for p in ("xuance", "xuance.torch", "xuance.torch.policies",
              "xuance.torch.representations"):
        bare(p)
    sys.modules["xuance.torch"].Tensor = torch.Tensor
    sys.modules["xuance.torch"].Module = nn.Module
    with standins("mpi4py", "pygame", "gymnasium", "wandb", "envpool"):
        from xuance.torch.policies.core import ActorNet
        from xuance.torch.representations.mlp import Basic_MLP

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.rep = Basic_MLP((8,), [64, 64], nn.LayerNorm, None, nn.ReLU, "cpu")
            self.net = ActorNet(64, 3, [32], nn.LayerNorm, None, nn.ReLU, nn.Tanh,
                                "cpu")

        def forward(self, observations):
            return self.net(self.rep(observations)["state"])

    return made(Actor(), lambda: R(64, 8) * 3 + 1, train=30)


def graph() -> Any:
    """Return a graph, with its adjacency implied."""
    e = integers(0, 60, (2, 150))
    return {"x": R(60, 12) * 2 + 1, "edge_index": torch.cat([e, e.flip(0)], 1)}


MODELS = {
    # packages not met before
    "efficientnet_pytorch_b0": public(
        "efficientnet_pytorch", lambda p: p.EfficientNet.from_name(
            "efficientnet-b0", num_classes=10), img(), batches=8),
    "seisbench_EQTransformer": seisbench,
    "weaver_ParticleNet": public(
        "weaver.nn.model.ParticleNet", lambda p: p.ParticleNet(
            7, 3, [(6, (16, 16, 16)), (6, (32, 32, 32))], [(32, 0.1)]), jets, train=20),
    "weaver_ParticleTransformer": public(
        "weaver.nn.model.ParticleTransformer", lambda p: p.ParticleTransformer(
            7, 3, embed_dims=(32, 64, 32), pair_input_dim=4, pair_embed_dims=(16, 16),
            num_heads=4, num_layers=2, num_cls_layers=1), four_vectors),
    "dingo_DenseResidualNet": public(
        "dingo.core.nn.resnet", lambda p: p.DenseResidualNet(
            40, 8, (64, 32, 32), dropout=0.1, norm="BatchNorm", context_features=6),
        lambda: {"x": R(64, 40) * 2, "context": R(64, 6)}, "dingo dingo.core "
        "dingo.core.nn", train=30),
    "ml4gw_ResNet1D": public(
        "ml4gw.nn.resnet.resnet_1d", lambda p: p.ResNet1D(2, [1, 1, 1], 4, 5),
        lambda: R(8, 2, 512), "ml4gw ml4gw.nn ml4gw.nn.resnet", batches=6),
    "scgpt_dsbn": scgpt,
    "lightzero_MuZero": muzero,
    "lerobot_DiffusionUnet1d": diffusion_policy,
    "torch_harmonics_SFNO": public(
        "torch_harmonics.examples.models.sfno", lambda p:
        p.SphericalFourierNeuralOperator(
            img_size=(16, 32), in_chans=3, out_chans=3, embed_dim=16, num_layers=2,
            scale_factor=1, normalization_layer="instance_norm", use_mlp=True),
        lambda: R(4, 3, 16, 32)),
    "cliffordlayers_FNO": public(
        "cliffordlayers.models.models_2d", lambda p: p.CliffordNet2d(
            [1, 1], functools.partial(p.CliffordFourierBasicBlock2d, modes1=4,
                                      modes2=4), [1, 1], 2, 1, 8,
            nn.functional.gelu, False, True, 2), lambda: R(4, 2, 16, 16, 3)),
    "azula_UNet": public(
        "azula.nn.unet", lambda p: p.UNet(
            3, 3, hid_channels=(16, 32), hid_blocks=(1, 1), mod_features=16),
        lambda: {"x": R(4, 3, 16, 16), "mod": R(4, 16)}),
    "score_models_NCSNpp": public(
        "score_models.architectures.ncsnpp", lambda p: p.NCSNpp(
            1, nf=16, ch_mult=(1, 2), num_res_blocks=1),
        lambda: {"t": U(4), "x": R(4, 1, 16, 16)}, absent="torch_ema h5py"),
    "opacus_ResNet": opacus_resnet,
    "sockeye_encoder": sockeye,
    "kraken_segmenter": kraken,
    "xuance_actor": xuance_mlp,
    "torchtuples_MLPVanilla": public(
        "torchtuples.practical", lambda p: p.MLPVanilla(10, [32, 32], 8, True, 0.1),
        lambda: R(64, 10) * 3 + 1, train=30),
    "face_alignment_FAN": public(
        "face_alignment.models.fan", lambda p: p.FAN(1), img(2),
        "face_alignment face_alignment.models"),
    "facexlib_MODNet": public(
        "facexlib.matting.modnet", lambda p: p.MODNet(backbone_pretrained=False),
        lambda: {"img": R(4, 3, 64, 64), "inference": False},
        "facexlib facexlib.matting", batches=6),
    "pygod_DOMINANT": public(
        "pygod.nn.dominant", lambda p: p.DOMINANTBase(
            12, 32, norm="batch_norm", dropout=0.1), graph, "pygod pygod.nn", train=25),
    "easyfsl_resnet12": public(
        "easyfsl.modules.predesigned_modules", lambda p: p.ResNet(
            p.BasicBlock, [1, 1, 2, 1], planes=[16, 32, 32, 64], num_classes=5,
            use_fc=True), img(8, 3, 42),
        "easyfsl easyfsl.modules", train=20),
    "instanseg_UNet": public(
        "instanseg.utils.models.InstanSeg_UNet", lambda p: p.InstanSeg_UNet(
            3, [[2, 2, 1]], [64, 32, 16]), img(), "instanseg instanseg.utils "
        "instanseg.utils.models", batches=6),
    "elektronn3_UNet": public(
        "elektronn3.models.unet", lambda p: p.UNet(
            1, 2, 3, 8, normalization="group", attention=True),
        lambda: R(2, 1, 16, 16, 16), "elektronn3 elektronn3.models"),
    "pl_bolts_DCGAN_discriminator": public(
        "pl_bolts.models.gans.dcgan.components", lambda p: p.DCGANDiscriminator(16, 3),
        img(16), "pl_bolts pl_bolts.models pl_bolts.models.gans "
        "pl_bolts.models.gans.dcgan", train=20),
    "mambular_ResNet": public(
        "mambular.base_models.resnet", lambda p: p.ResNet(
            ({n: {"preprocessing": "none", "dimension": 1, "categories": None}
              for n in "abcdef"}, {}, {}), 2,
            p.DefaultResNetConfig(layer_sizes=[32, 32, 32], norm=True)),
        lambda: ([R(64, 1) * 2 for _ in range(6)], [], []),
        "mambular mambular.base_models", "pretab"),
    "torchfcpe": public(
        "torchfcpe.models", lambda p: p.CFNaiveMelPE(32, 40, 32, 2, 4),
        lambda: R(4, 24, 32), "torchfcpe", "torchaudio librosa local_attention"),
    "basicts_NonstationaryTransformer": public(
        "basicts.models.NonstationaryTransformer", lambda p:
        p.NonstationaryTransformerForForecasting(p.NonstationaryTransformerConfig(
            input_len=24, output_len=8, label_len=12, num_features=3, hidden_size=32,
            n_heads=4, intermediate_size=64, proj_hidden_size=16)),
        lambda: {"inputs": R(8, 24, 3).cumsum(1), "targets": R(8, 8, 3),
                 "inputs_timestamps": U(8, 24, 2), "targets_timestamps": U(8, 8, 2)},
        "basicts basicts.models", "setproctitle easytorch", train=20),
    "torchgeo_FCSiamDiff": public(
        "torchgeo.models.fcsiam", lambda p: p.FCSiamDiff(
            "resnet18", encoder_weights=None, in_channels=3, classes=2),
        lambda: R(4, 2, 3, 64, 64), "torchgeo torchgeo.models"),
    # packages met before
    "timm_repvit_m0_9": timm_("repvit_m0_9"),
    "hf_Gemma3": public(
        "transformers", lambda p: p.Gemma3ForCausalLM(p.Gemma3TextConfig(
            **SMALL, num_key_value_heads=2, head_dim=16, sliding_window=8)),
        lambda: {"input_ids": integers(3, 90, (8, 12))}, train=20),
    "hf_Parakeet": hf(
        "ParakeetEncoder", "", lambda: {"input_features": R(4, 64, 16)}, batches=8,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_mel_bins=16,
        intermediate_size=64, subsampling_conv_channels=16),
    "diffusers_SD3": public(
        "diffusers", lambda p: p.SD3Transformer2DModel(
            8, 2, 4, 2, 8, 4, 16, 32, 16, 4, pos_embed_max_size=8, qk_norm="rms_norm"),
        lambda: {"hidden_states": R(4, 4, 8, 8), "encoder_hidden_states": R(4, 6, 16),
                 "pooled_projections": R(4, 16), "timestep": integers(0, 1000, (4,))}),
    "pyg_PMLP": public(
        "torch_geometric.nn.models", lambda p: p.PMLP(12, 32, 4, 3, norm=True), graph,
        train=20),
    "monai_AttentionUnet": public(
        "monai.networks.nets", lambda p: p.AttentionUnet(
            2, 1, 2, (8, 16, 32), (2, 2)), img(8, 1, 32), train=20),
    "speechbrain_Cnn14": public(
        "speechbrain.lobes.models.Cnn14", lambda p: p.Cnn14(64, 16),
        lambda: R(4, 1, 64, 64), absent="torchaudio"),
    "kornia_HyNet": public(
        "kornia.feature", lambda p: p.HyNet(pretrained=False),
        img(16, 1, 32), train=20),
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
