"""Audit a fourth set of public models, chosen by somebody who saw no audit.

As `audit_third.py`: as released, small settings, random weights and data, nothing is
downloaded. It needs what `make in-the-wild` installs, and what `audit_fourth.txt`
lists.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

# The first of these, as it lets torchvision be imported.
from audit_models import compare
from torch import nn

PACKAGES = (
    "pytorch-pretrained-biggan",
    "lightweight-gan",
    "imagen-pytorch",
    "timesformer-pytorch",
    "retinaface-pytorch",
    "yolov5",
    "torchxrayvision",
    "easyocr",
    "torchreid",
    "hiera-transformer",
    "timm",
    "pytorchcv",
    "segmentation_models_pytorch",
    "torchvision",
    "monai",
    "highresnet",
    "unet",
    "torcheeg",
    "selfeeg",
    "beat-this",
    "music2latent",
    "BS-RoFormer",
    "mvector",
    "hear21passt",
    "wavenet_vocoder",
    "speechbrain",
    "transformers",
    "performer-pytorch",
    "reformer-pytorch",
    "Mega-pytorch",
    "nGPT-pytorch",
    "gateloop-transformer",
    "product_key_memory",
    "local-attention",
    "diffusers",
    "granite-tsfm",
    "toto-ts",
    "pytorch-frame",
    "tabicl",
    "deeptab",
    "deepctr-torch",
    "recbole",
    "mlgb",
    "sheeprl",
    "se3-transformer-pytorch",
    "tape-proteins",
    "sequence-models",
    "protein-bert-pytorch",
    "torchflows",
    "torch-pointcloud",
    "torch-geometric",
)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are not there, of which nothing here is called."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def has(self, name: str) -> bool:
        """Return whether a module is one of these, or inside one."""
        return any(f"{name}.".startswith(f"{one}.") for one in self.names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the modules that are not there."""
        if not self.has(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        """Make one that has whatever is asked of it."""
        made = mock.MagicMock(name=spec.name)
        made.__spec__, made.__path__, made.__name__ = spec, [], spec.name
        made.__version__, made.__file__, made.__all__ = "9.9.9", "none", []
        return made

    def exec_module(self, module: Any) -> None:
        """Do nothing more."""


@contextlib.contextmanager
def standins(*names: str) -> Iterator[None]:
    """Let modules be imported that are not there."""
    importlib.import_module("transformers")  # looks for what is there first
    finder = StandIns(names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in [*sys.modules.items()]:
            if finder.has(name) and isinstance(module, mock.MagicMock):
                del sys.modules[name]


def randint(*a: Any) -> Any:
    """Make what several of the models take."""
    return torch.randint(*a)


def biggan() -> Any:
    """Make BigGAN of pytorch-pretrained-biggan."""
    with standins("boto3", "botocore", "nltk"):
        from pytorch_pretrained_biggan import BigGAN, BigGANConfig
    config = BigGANConfig(
        output_dim=32,
        z_dim=16,
        class_embed_dim=16,
        channel_width=16,
        num_classes=10,
        layers=[
            (False, 16, 16),
            (True, 16, 8),
            (True, 8, 4),
            (True, 4, 2),
            (True, 2, 1),
        ],
        attention_layer_position=3,
    )
    y = nn.functional.one_hot(randint(0, 10, (16,)), 10).float()
    return BigGAN(config), {
        "z": torch.randn(16, 16),
        "class_label": y,
        "truncation": 0.7,
    }


def lightweight_gan() -> Any:
    """Make Generator of lightweight-gan."""
    with standins("aim"), mock.patch("torch.cuda.is_available", return_value=True):
        from lightweight_gan.lightweight_gan import Generator
    return Generator(
        image_size=32, latent_dim=32, fmap_max=32, attn_res_layers=[16]
    ), torch.randn(16, 32)


def imagen() -> Any:
    """Make Unet of imagen-pytorch."""
    fake = types.ModuleType("imagen_pytorch.t5")
    fake.t5_encode_text = None
    fake.get_encoded_dim = lambda name: 64
    fake.DEFAULT_T5_NAME = "none"
    root = types.ModuleType("imagen_pytorch")
    import importlib.util

    spec = importlib.util.find_spec("imagen_pytorch")
    root.__path__ = list(spec.submodule_search_locations)
    sys.modules["imagen_pytorch"] = root
    sys.modules["imagen_pytorch.t5"] = fake
    from imagen_pytorch.imagen_pytorch import Unet

    m = Unet(
        dim=32,
        text_embed_dim=64,
        dim_mults=(1, 2),
        attn_dim_head=16,
        attn_heads=2,
        layer_attns=(False, True),
        layer_cross_attns=(False, True),
        max_text_len=16,
        attn_pool_num_latents=8,
    )
    mask = torch.arange(12) < randint(5, 13, (8, 1))
    return m, {
        "x": torch.randn(8, 3, 32, 32),
        "time": torch.rand(8),
        "text_embeds": torch.randn(8, 12, 64),
        "text_mask": mask,
    }


def timesformer() -> Any:
    """Make TimeSformer of timesformer-pytorch."""
    from timesformer_pytorch import TimeSformer

    m = TimeSformer(
        dim=64,
        image_size=32,
        patch_size=8,
        num_frames=4,
        num_classes=10,
        depth=3,
        heads=4,
        dim_head=16,
    )
    return m, torch.randn(8, 4, 3, 32, 32)


def retinaface() -> Any:
    """Make RetinaFace of retinaface-pytorch."""
    with standins("cv2", "albumentations", "iglovikov_helper_functions"):
        from retinaface.network import RetinaFace
    m = RetinaFace(
        name="Resnet50",
        pretrained=False,
        return_layers={"layer2": 1, "layer3": 2, "layer4": 3},
        in_channels=256,
        out_channels=64,
    )
    return m, torch.randn(8, 3, 96, 96)


def yolov5() -> Any:
    """Make DetectionModel of yolov5."""
    with standins("cv2", "seaborn", "ultralytics"):
        import yolov5.models.yolo as kind
    import pathlib

    return kind.DetectionModel(
        str(pathlib.Path(kind.__file__).with_name("yolov5n.yaml")), nc=5
    ), torch.rand(8, 3, 128, 128)


def xrv() -> Any:
    """Make DenseNet of torchxrayvision."""
    with standins("imageio", "skimage"):
        import torchxrayvision as xrv
    m = xrv.models.DenseNet(
        growth_rate=12, block_config=(2, 4, 4, 2), num_init_features=24, num_classes=5
    )
    return m, torch.randn(8, 1, 64, 64)


def craft() -> Any:
    """Make CRAFT of easyocr."""
    with standins("cv2", "skimage", "shapely", "pyclipper", "bidi"):
        from easyocr.craft import CRAFT
    return CRAFT(pretrained=False), torch.randn(8, 3, 64, 64)


def dbnet() -> Any:
    """Make SegDetector of easyocr."""
    with standins("cv2", "skimage", "shapely", "pyclipper", "bidi"):
        from easyocr.DBNet.decoders.seg_detector import SegDetector
    torch.manual_seed(0)
    m = SegDetector(
        in_channels=[16, 32, 64, 128], inner_channels=32, adaptive=True, k=50
    )
    sizes = (32, 16, 8, 4)
    return m, {
        "features": [
            torch.randn(8, c, s, s)
            for c, s in zip((16, 32, 64, 128), sizes, strict=False)
        ]
    }


def osnet() -> Any:
    """Make OSNet of torchreid."""
    with standins("cv2", "gdown", "h5py", "imageio"):
        from torchreid.reid.models.osnet_ain import osnet_ain_x0_25
    return osnet_ain_x0_25(num_classes=10, pretrained=False), torch.randn(8, 3, 128, 64)


def hiera() -> Any:
    """Make Hiera of hiera-transformer."""
    from hiera import Hiera

    m = Hiera(
        input_size=(64, 64),
        embed_dim=24,
        num_heads=1,
        num_classes=10,
        stages=(1, 1, 2, 1),
        q_pool=2,
        mask_unit_size=(4, 4),
        mask_unit_attn=(True, True, False, False),
    )
    return m, torch.randn(8, 3, 64, 64)


def timm_(name, size=64, n=8, **k) -> Any:
    """Make what several of the models take."""

    def make():
        import timm

        return timm.create_model(
            name, pretrained=False, num_classes=10, **k
        ), torch.randn(n, 3, size, size)

    return make


def pcv(name, size=64, n=8, **k) -> Any:
    """Make ShaResNet of pytorchcv."""

    def make():
        from pytorchcv.model_provider import get_model

        return get_model(name, pretrained=False, **k), torch.randn(n, 3, size, size)

    return make


def smp_upernet() -> Any:
    """Make UPerNet of segmentation_models_pytorch."""
    from segmentation_models_pytorch import UPerNet

    return UPerNet(encoder_name="mit_b0", encoder_weights=None, classes=3), torch.randn(
        8, 3, 64, 64
    )


def tv_maxvit() -> Any:
    """Make MaxVit of torchvision."""
    from torchvision.models.maxvit import MaxVit

    m = MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=16,
        stochastic_depth_prob=0.1,
        num_classes=10,
    )
    return m, torch.randn(8, 3, 64, 64)


def tv_mc3() -> Any:
    """Make VideoResNet of torchvision."""
    from torchvision.models.video import mc3_18

    return mc3_18(weights=None, num_classes=10), torch.randn(8, 3, 8, 32, 32)


def monai_mednext() -> Any:
    """Make MedNeXt of monai."""
    from monai.networks.nets import MedNeXt

    m = MedNeXt(
        spatial_dims=2,
        init_filters=8,
        in_channels=1,
        out_channels=2,
        encoder_expansion_ratio=2,
        decoder_expansion_ratio=2,
        bottleneck_expansion_ratio=2,
        blocks_down=(1, 1),
        blocks_bottleneck=1,
        blocks_up=(1, 1),
        deep_supervision=True,
        global_resp_norm=True,
    )
    return m, torch.randn(8, 1, 32, 32)


def highresnet() -> Any:
    """Make HighResNet of highresnet."""
    from highresnet import HighResNet

    return HighResNet(in_channels=1, out_channels=2, dimensions=2), torch.randn(
        8, 1, 32, 32
    )


def fepe_unet() -> Any:
    """Make UNet of unet."""
    from unet import UNet

    m = UNet(
        in_channels=1,
        out_classes=2,
        dimensions=3,
        num_encoding_blocks=3,
        out_channels_first_layer=8,
        normalization="batch",
        upsampling_type="linear",
        padding=True,
        preactivation=True,
        residual=True,
        activation="PReLU",
    )
    return m, torch.randn(4, 1, 16, 16, 16)


def labram() -> Any:
    """Make LaBraM of torcheeg."""
    with standins("torch_scatter", "lmdb", "xmltodict", "spectrum"):
        from torcheeg.models import LaBraM
    m = LaBraM(
        chunk_size=400,
        patch_size=200,
        depth=3,
        num_heads=4,
        num_classes=4,
        init_values=0.1,
    )
    names = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]
    return m, {"x": torch.randn(8, 8, 2, 200), "electrodes": names}


def bcglow() -> Any:
    """Make BCGlow of torcheeg."""
    with standins("torch_scatter", "lmdb", "xmltodict", "spectrum"):
        from torcheeg.models import BCGlow
    return BCGlow(in_channels=4, hidden_channels=16, num_steps=2, num_blocks=2), {
        "x": torch.randn(8, 4, 32, 32),
        "y": randint(0, 2, (8,)),
    }


def eegsym() -> Any:
    """Make EEGSym of selfeeg."""
    with standins("torchaudio"):
        from selfeeg.models import EEGSym
    return EEGSym(nb_classes=2, Chans=8, Samples=256, Fs=128), torch.randn(8, 8, 256)


def xeegnet() -> Any:
    """Make ATCNet of selfeeg."""
    with standins("torchaudio"):
        from selfeeg.models import ATCNet
    return ATCNet(nb_classes=3, Chans=8, Samples=512, Fs=128), torch.randn(8, 8, 512)


def beat_this() -> Any:
    """Make BeatThis of beat-this."""
    with standins("soxr"):
        from beat_this.model.beat_tracker import BeatThis
    return BeatThis(
        transformer_dim=64, n_layers=2, head_dim=16, stem_dim=16
    ), torch.randn(8, 40, 128)


def music2latent_encoder() -> Any:
    """Make Encoder of music2latent."""
    with standins("soundfile", "librosa"):
        from music2latent.models import Encoder
    return Encoder(), torch.randn(4, 2, 1024, 8)


def bs_roformer() -> Any:
    """Make BSRoformer of BS-RoFormer."""
    with standins("librosa"):
        from bs_roformer import BSRoformer
    m = BSRoformer(
        dim=32,
        depth=2,
        time_transformer_depth=1,
        freq_transformer_depth=1,
        dim_head=16,
        heads=2,
        flash_attn=False,
        freqs_per_bands=(8, 8, 16, 33),
        dim_freqs_in=65,
        stft_n_fft=128,
        stft_hop_length=64,
        stft_win_length=128,
        mask_estimator_depth=1,
    )
    return m, torch.randn(8, 1280)


def campplus() -> Any:
    """Make CAMPPlus of mvector."""
    from mvector.models.campplus import CAMPPlus

    return CAMPPlus(80, embd_dim=64, growth_rate=16, init_channels=32), torch.randn(
        8, 60, 80
    )


def eres2net() -> Any:
    """Make ERes2NetV2 of mvector."""
    from mvector.models.eres2net import ERes2NetV2

    return ERes2NetV2(
        80, num_blocks=[1, 1, 1, 1], m_channels=16, embd_dim=64
    ), torch.randn(8, 60, 80)


def passt() -> Any:
    """Make PaSST of hear21passt."""
    from hear21passt.models.passt import PaSST

    m = PaSST(
        u_patchout=4,
        s_patchout_t=2,
        s_patchout_f=1,
        img_size=(64, 96),
        patch_size=16,
        stride=16,
        num_classes=10,
        embed_dim=64,
        depth=3,
        num_heads=4,
        distilled=True,
    )
    return m, torch.randn(8, 1, 64, 96)


def wavenet() -> Any:
    """Make WaveNet of wavenet_vocoder."""
    from wavenet_vocoder import WaveNet

    m = WaveNet(
        out_channels=32,
        layers=4,
        stacks=2,
        residual_channels=16,
        gate_channels=16,
        skip_out_channels=16,
    )
    return m, nn.functional.one_hot(randint(0, 32, (8, 200)), 32).float().transpose(
        1, 2
    )


def sepformer() -> Any:
    """Make Dual_Path_Model of speechbrain."""
    with standins("torchaudio"):
        from speechbrain.lobes.models.dual_path import (
            Dual_Path_Model,
            SBTransformerBlock,
        )
    kw = {"num_layers": 1, "d_model": 32, "nhead": 4, "d_ffn": 64, "norm_before": True}
    m = Dual_Path_Model(
        32,
        32,
        SBTransformerBlock(**kw),
        SBTransformerBlock(**kw),
        num_layers=2,
        norm="gln",
        K=20,
        num_spks=2,
    )
    return m, torch.randn(8, 32, 60)


def fastspeech2() -> Any:
    """Make FastSpeech2ConformerModel of transformers."""
    from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

    c = FastSpeech2ConformerConfig(
        hidden_size=32,
        vocab_size=40,
        num_mel_bins=20,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        encoder_layers=2,
        decoder_layers=2,
        encoder_linear_units=64,
        decoder_linear_units=64,
        speech_decoder_postnet_units=16,
        speech_decoder_postnet_layers=3,
        duration_predictor_channels=32,
        energy_predictor_channels=32,
        pitch_predictor_channels=32,
        duration_predictor_layers=2,
        pitch_predictor_layers=2,
        energy_predictor_layers=2,
    )
    m = FastSpeech2ConformerModel(c)
    n = 10
    dur = randint(1, 4, (8, n))
    return m, {
        "input_ids": randint(1, 40, (8, n)),
        "attention_mask": torch.ones(8, n).long(),
        "duration_labels": dur,
        "pitch_labels": torch.randn(8, n, 1),
        "energy_labels": torch.randn(8, n, 1),
        "spectrogram_labels": torch.randn(8, int(dur.sum(1).max()), 20),
    }


def performer() -> Any:
    """Make PerformerLM of performer-pytorch."""
    from performer_pytorch import PerformerLM

    m = PerformerLM(
        num_tokens=100,
        max_seq_len=32,
        dim=64,
        depth=3,
        heads=4,
        dim_head=16,
        use_scalenorm=True,
        nb_features=24,
        causal=False,
    )
    return m, randint(0, 100, (8, 32))


def reformer() -> Any:
    """Make ReformerLM of reformer-pytorch."""
    from reformer_pytorch import ReformerLM

    m = ReformerLM(
        num_tokens=100,
        dim=64,
        depth=2,
        max_seq_len=32,
        heads=4,
        dim_head=16,
        bucket_size=8,
        n_hashes=2,
        ff_chunks=4,
        use_scale_norm=True,
        causal=True,
    )
    return m, randint(0, 100, (8, 32))


def mega() -> Any:
    """Make Mega of Mega-pytorch."""
    from mega_pytorch import Mega

    m = Mega(
        num_tokens=100,
        dim=64,
        depth=3,
        ema_heads=8,
        attn_dim_qk=32,
        attn_dim_value=64,
        laplacian_attn_fn=True,
    )
    return m, randint(0, 100, (8, 32))


def ngpt() -> Any:
    """Make nGPT of nGPT-pytorch."""
    from nGPT_pytorch import nGPT

    return nGPT(num_tokens=100, dim=64, depth=3, dim_head=16, heads=4), randint(
        0, 100, (8, 32)
    )


def gateloop() -> Any:
    """Make Transformer of gateloop-transformer."""
    from gateloop_transformer import Transformer

    return Transformer(
        dim=64,
        num_tokens=100,
        depth=3,
        dim_head=16,
        heads=4,
        post_ln_norm=True,
        sub_ln=True,
    ), randint(0, 100, (8, 32))


def pkm() -> Any:
    """Make PKM of product_key_memory."""
    from product_key_memory import PKM

    m = PKM(64, heads=2, num_keys=16, topk=4, dim_head=32, norm_output=True)
    return m, torch.randn(8, 20, 64)


def local_transformer() -> Any:
    """Make LocalTransformer of local-attention."""
    from local_attention import LocalTransformer

    m = LocalTransformer(
        num_tokens=100,
        dim=64,
        depth=3,
        max_seq_len=64,
        local_attn_window_size=8,
        dim_head=16,
        heads=4,
        qk_rmsnorm=True,
        num_residual_streams=2,
    )
    return m, randint(0, 100, (8, 32))


def hf(kind, head="Model", **k) -> Any:
    """Make what several of the models take."""

    def make():
        import transformers

        base = {
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
        c = getattr(transformers, kind + "Config")(**(base | k))
        return getattr(transformers, kind + head)(c), {
            "input_ids": randint(3, 100, (16, 12))
        }

    return make


def mobilebert() -> Any:
    """Make MobileBertModel of transformers."""
    from transformers import MobileBertConfig, MobileBertModel

    c = MobileBertConfig(
        vocab_size=100,
        hidden_size=64,
        embedding_size=32,
        intra_bottleneck_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
    )
    ids = randint(3, 100, (16, 12))
    mask = (torch.arange(12) < randint(5, 13, (16, 1))).long()
    return MobileBertModel(c), {"input_ids": ids, "attention_mask": mask}


def convnextv2() -> Any:
    """Make ConvNextV2ForImageClassification of transformers."""
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    c = ConvNextV2Config(
        hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10, image_size=64
    )
    return ConvNextV2ForImageClassification(c), {
        "pixel_values": torch.randn(8, 3, 64, 64)
    }


def decision() -> Any:
    """Make DecisionTransformerModel of transformers."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    c = DecisionTransformerConfig(
        state_dim=6,
        act_dim=2,
        hidden_size=32,
        max_ep_len=50,
        n_layer=2,
        n_head=2,
        vocab_size=1,
    )
    m = DecisionTransformerModel(c)
    return m, {
        "states": torch.randn(8, 10, 6),
        "actions": torch.rand(8, 10, 2),
        "rewards": torch.randn(8, 10, 1),
        "returns_to_go": torch.randn(8, 10, 1),
        "timesteps": torch.arange(10).repeat(8, 1),
        "attention_mask": torch.ones(8, 10),
    }


def autoencoder_dc() -> Any:
    """Make AutoencoderDC of diffusers."""
    from diffusers import AutoencoderDC

    m = AutoencoderDC(
        in_channels=3,
        latent_channels=8,
        attention_head_dim=16,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(16, 32, 64),
        decoder_block_out_channels=(16, 32, 64),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
    )
    return m, torch.randn(8, 3, 32, 32)


def cascade() -> Any:
    """Make StableCascadeUNet of diffusers."""
    from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet

    m = StableCascadeUNet(
        in_channels=4,
        out_channels=4,
        timestep_ratio_embedding_dim=16,
        patch_size=1,
        conditioning_dim=32,
        block_out_channels=(32, 64),
        num_attention_heads=(2, 4),
        down_num_layers_per_block=(1, 2),
        up_num_layers_per_block=(2, 1),
        down_blocks_repeat_mappers=(1, 1),
        up_blocks_repeat_mappers=(1, 1),
        block_types_per_layer=(
            ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
            ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
        ),
        clip_text_in_channels=32,
        clip_text_pooled_in_channels=32,
        clip_image_in_channels=32,
        clip_seq=2,
        switch_level=(False,),
        dropout=(0.1, 0.1),
    )
    return m, {
        "sample": torch.randn(8, 4, 16, 16),
        "timestep_ratio": torch.rand(8),
        "clip_text_pooled": torch.randn(8, 1, 32),
        "clip_text": torch.randn(8, 6, 32),
        "clip_img": torch.randn(8, 1, 32),
    }


def wan_vae() -> Any:
    """Make AutoencoderKLWan of diffusers."""
    from diffusers import AutoencoderKLWan

    m = AutoencoderKLWan(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    return m, torch.randn(4, 3, 5, 32, 32)


def ttm() -> Any:
    """Make TinyTimeMixerForPrediction of granite-tsfm."""
    with standins("datasets"):
        from tsfm_public.models.tinytimemixer import (
            TinyTimeMixerConfig,
            TinyTimeMixerForPrediction,
        )
    c = TinyTimeMixerConfig(
        context_length=64,
        patch_length=8,
        patch_stride=8,
        num_input_channels=3,
        prediction_length=16,
        d_model=32,
        num_layers=2,
        decoder_num_layers=2,
        norm_mlp="BatchNorm",
        gated_attn=True,
        mode="mix_channel",
        decoder_d_model=16,
        scaling="revin",
        adaptive_patching_levels=0,
    )
    return TinyTimeMixerForPrediction(c), {"past_values": torch.randn(16, 64, 3)}


def tspulse() -> Any:
    """Make TSPulseForReconstruction of granite-tsfm."""
    with standins("datasets"):
        from tsfm_public.models.tspulse import TSPulseConfig, TSPulseForReconstruction
    c = TSPulseConfig(
        context_length=64,
        patch_length=8,
        patch_stride=8,
        num_input_channels=3,
        d_model=32,
        num_layers=2,
        decoder_num_layers=1,
        decoder_d_model=32,
    )
    return TSPulseForReconstruction(c), {"past_values": torch.randn(16, 64, 3)}


def toto() -> Any:
    """Make TotoBackbone of toto-ts."""
    from toto.model.backbone import TotoBackbone

    m = TotoBackbone(
        patch_size=8,
        stride=8,
        embed_dim=32,
        num_layers=4,
        num_heads=2,
        mlp_hidden_dim=64,
        dropout=0.1,
        spacewise_every_n_layers=2,
        scaler_cls="<class 'model.scaler.CausalPatchStdMeanScaler'>",
        output_distribution_classes=["<class 'model.distribution.StudentTOutput'>"],
        use_memory_efficient_attention=False,
    )
    return m, {
        "inputs": torch.randn(8, 3, 64),
        "input_padding_mask": torch.ones(8, 3, 64).bool(),
        "id_mask": torch.zeros(8, 3, 64),
    }


def patchtsmixer() -> Any:
    """Make PatchTSMixerForPrediction of transformers."""
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    c = PatchTSMixerConfig(
        context_length=64,
        patch_length=8,
        patch_stride=8,
        num_input_channels=3,
        prediction_length=16,
        d_model=32,
        num_layers=3,
        norm_mlp="BatchNorm",
        self_attn=True,
        mode="mix_channel",
    )
    return PatchTSMixerForPrediction(c), {"past_values": torch.randn(16, 64, 3)}


def frame(kind, **k) -> Any:
    """Make what several of the models take."""

    def make():
        import numpy
        import pandas
        import torch_frame
        from torch_frame.data import Dataset
        from torch_frame.nn import models as M

        g = numpy.random.default_rng(0)
        df = pandas.DataFrame(
            {
                "a": g.normal(size=64),
                "b": g.normal(size=64),
                "c": g.integers(0, 4, 64),
                "d": g.normal(size=64),
                "y": g.integers(0, 3, 64),
            }
        )
        s = torch_frame
        types_ = {
            "a": s.numerical,
            "b": s.numerical,
            "d": s.numerical,
            "c": s.categorical,
            "y": s.categorical,
        }
        d = Dataset(df, types_, target_col="y")
        d.materialize()
        m = getattr(M, kind)(
            out_channels=3,
            col_stats=d.col_stats,
            col_names_dict=d.tensor_frame.col_names_dict,
            **k,
        )
        return m, {"tf": d.tensor_frame}

    return make


def tabicl() -> Any:
    """Make TabICL of tabicl."""
    from tabicl._model.tabicl import TabICL

    m = TabICL(
        max_classes=4,
        embed_dim=32,
        col_num_blocks=1,
        col_nhead=2,
        col_num_inds=8,
        row_num_blocks=1,
        row_nhead=2,
        row_num_cls=2,
        icl_num_blocks=2,
        icl_nhead=2,
    )
    return m, {"X": torch.randn(4, 30, 6), "y_train": randint(0, 4, (4, 20)).float()}


def saint() -> Any:
    """Make SAINT of deeptab."""
    with standins("pretab", "skopt"):
        from deeptab.architectures.saint import SAINT
        from deeptab.configs.models.saint_config import SAINTConfig
    num = {
        f"n{i}": {
            "preprocessing": "standardization",
            "dimension": 1,
            "categories": None,
        }
        for i in range(4)
    }
    cat = {
        f"c{i}": {"preprocessing": "int", "dimension": 1, "categories": 5}
        for i in range(2)
    }
    m = SAINT(
        (num, cat, {}),
        num_classes=3,
        config=SAINTConfig(
            d_model=32,
            n_layers=2,
            norm="RMSNorm",
            head_use_batch_norm=True,
            head_layer_sizes=[16],
        ),
    )
    return m, (
        [torch.randn(32, 1) for _ in range(4)],
        [randint(0, 5, (32, 1)) for _ in range(2)],
        [],
    )


def autoint() -> Any:
    """Make AutoInt of deepctr-torch."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import AutoInt

    cols = [SparseFeat(f"s{i}", 10, embedding_dim=8) for i in range(4)] + [
        DenseFeat("d", 3)
    ]
    m = AutoInt(cols, cols, dnn_hidden_units=(32, 16), dnn_use_bn=True, dnn_dropout=0.2)
    return m, torch.cat([randint(0, 10, (64, 4)).float(), torch.randn(64, 3)], 1)


def sasrec() -> Any:
    """Make SASRec of recbole."""
    with standins("colorama", "thop"):
        from recbole.model.sequential_recommender.sasrec import SASRec
    config = {
        "USER_ID_FIELD": "u",
        "ITEM_ID_FIELD": "i",
        "LIST_SUFFIX": "_list",
        "ITEM_LIST_LENGTH_FIELD": "len",
        "NEG_PREFIX": "neg_",
        "MAX_ITEM_LIST_LENGTH": 12,
        "device": "cpu",
        "n_layers": 2,
        "n_heads": 2,
        "hidden_size": 32,
        "inner_size": 64,
        "hidden_dropout_prob": 0.3,
        "attn_dropout_prob": 0.3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "loss_type": "CE",
    }
    data = types.SimpleNamespace(num=lambda field: 50)
    n = randint(3, 13, (16,))
    seq = randint(1, 50, (16, 12)) * (torch.arange(12) < n[:, None])
    return SASRec(config, data), {"item_seq": seq, "item_seq_len": n}


def mlgb_linears() -> Any:
    """Make DeepNeuralNetworkLayer of mlgb."""
    with standins("tensorflow"):
        from mlgb.torch.components.linears import DeepNeuralNetworkLayer
    m = DeepNeuralNetworkLayer(
        dnn_hidden_units=[32, 16], dnn_if_bn=True, dnn_if_ln=True, dnn_dropout=0.1
    )
    x = torch.randn(64, 12)
    m.eval()(x)  # its layers are lazy
    return m.train(), x


def dreamer() -> Any:
    """Make CNNEncoder of sheeprl."""
    with standins("cv2"):
        from sheeprl.algos.dreamer_v3.agent import CNNEncoder
    return CNNEncoder(["rgb"], [3], (64, 64), 8), {
        "obs": {"rgb": torch.randn(16, 3, 64, 64)}
    }


def gru_cell() -> Any:
    """Make RecurrentModel of sheeprl."""
    with standins("cv2"):
        from sheeprl.algos.dreamer_v3.agent import RecurrentModel
    m = RecurrentModel(
        12, 32, 32, layer_norm_kw={"eps": 1e-3}, layer_norm_cls=nn.LayerNorm
    )
    return m, {"input": torch.randn(16, 12), "recurrent_state": torch.randn(16, 32)}


def se3() -> Any:
    """Make SE3Transformer of se3-transformer-pytorch."""
    from se3_transformer_pytorch import SE3Transformer

    m = SE3Transformer(
        dim=16,
        heads=2,
        depth=2,
        dim_head=8,
        num_degrees=2,
        valid_radius=10,
        num_neighbors=6,
        num_tokens=21,
        norm_out=True,
        num_conv_layers=1,
    )
    return m, {
        "feats": randint(0, 21, (4, 12)),
        "coors": torch.randn(4, 12, 3),
        "mask": torch.arange(12) < randint(8, 13, (4, 1)),
    }


def tape_resnet() -> Any:
    """Make ProteinResNetModel of tape-proteins."""
    with standins("lmdb", "boto3", "botocore", "tensorboardX"):
        from tape.models.modeling_resnet import ProteinResNetConfig, ProteinResNetModel
    m = ProteinResNetModel(ProteinResNetConfig(hidden_size=32, num_hidden_layers=4))
    mask = (torch.arange(20) < randint(10, 21, (8, 1))).long()
    return m, {"input_ids": randint(1, 30, (8, 20)), "input_mask": mask}


def bytenet() -> Any:
    """Make ByteNetLM of sequence-models."""
    from sequence_models.convolutional import ByteNetLM

    m = ByteNetLM(
        n_tokens=30,
        d_embedding=8,
        d_model=32,
        n_layers=4,
        kernel_size=5,
        r=8,
        padding_idx=29,
        final_ln=True,
        activation="gelu",
    )
    mask = (torch.arange(20) < randint(10, 21, (8, 1))).float().unsqueeze(-1)
    return m, {"x": randint(0, 29, (8, 20)), "input_mask": mask}


def protein_bert() -> Any:
    """Make ProteinBERT of protein-bert-pytorch."""
    from protein_bert_pytorch import ProteinBERT

    m = ProteinBERT(
        num_tokens=21,
        num_annotation=50,
        dim=32,
        dim_global=16,
        depth=2,
        attn_heads=2,
        attn_dim_head=16,
        local_to_global_attn=True,
        local_self_attn=True,
        glu_conv=True,
    )
    mask = torch.arange(20) < randint(10, 21, (8, 1))
    return m, {
        "seq": randint(0, 21, (8, 20)),
        "annotation": randint(0, 2, (8, 50)).float(),
        "mask": mask,
    }


def realnvp() -> Any:
    """Make RealNVP of torchflows."""
    from torchflows.bijections.finite.autoregressive.architectures import RealNVP

    return RealNVP((6,), n_layers=2), torch.randn(32, 6)


def cloud(n=8, k=64, f=3) -> Any:
    """Make what several of the models take."""
    return {
        "x": torch.randn(n * k, f),
        "pos": torch.rand(n * k, 3),
        "batch": torch.arange(n).repeat_interleave(k),
    }


def pointnet() -> Any:
    """Make PointNetClassification of torch-pointcloud."""
    with standins("h5py", "laspy", "plyfile", "open3d"):
        from torch_pointcloud.models.pointnet import PointNetClassification
    return PointNetClassification(
        3,
        10,
        mlp1_channels=(16,),
        mlp2_channels=(32, 64),
        tnet_mlp1_dims=(16, 32, 64),
        tnet_mlp2_dims=(32, 16),
        head_channels=(32, 16),
        dropout=0.3,
    ), cloud()


def sage_dgn() -> Any:
    """Make GraphSAGE of torch-geometric."""
    from torch_geometric.nn.models import GraphSAGE

    m = GraphSAGE(
        8,
        32,
        3,
        out_channels=4,
        norm="diff_group_norm",
        norm_kwargs={"groups": 4},
        jk="cat",
    )
    e = [
        torch.cat([t, t.flip(0)], 1) + 12 * i
        for i in range(16)
        for t in [randint(0, 12, (2, 30))]
    ]
    return m, {"x": torch.randn(192, 8), "edge_index": torch.cat(e, 1)}


MODELS = {
    "biggan": biggan,
    "lightweight_gan_generator": lightweight_gan,
    "imagen_Unet": imagen,
    "timesformer": timesformer,
    "retinaface": retinaface,
    "yolov5n": yolov5,
    "xrv_DenseNet": xrv,
    "easyocr_CRAFT": craft,
    "easyocr_DBNet_SegDetector": dbnet,
    "torchreid_osnet_ain": osnet,
    "hiera": hiera,
    "timm_fastvit_t8": timm_("fastvit_t8"),
    "timm_mobilenetv4_conv_small": timm_("mobilenetv4_conv_small"),
    "timm_skresnet18": timm_("skresnet18"),
    "pytorchcv_sharesnet18": pcv("sharesnet18", 224, 4),
    "smp_UPerNet_mit_b0": smp_upernet,
    "tv_MaxVit": tv_maxvit,
    "tv_mc3_18": tv_mc3,
    "monai_MedNeXt": monai_mednext,
    "highresnet": highresnet,
    "fepegar_unet3d": fepe_unet,
    "torcheeg_LaBraM": labram,
    "torcheeg_BCGlow": bcglow,
    "selfeeg_EEGSym": eegsym,
    "selfeeg_ATCNet": xeegnet,
    "beat_this": beat_this,
    "music2latent_Encoder": music2latent_encoder,
    "bs_roformer": bs_roformer,
    "mvector_CAMPPlus": campplus,
    "mvector_ERes2NetV2": eres2net,
    "passt": passt,
    "wavenet_vocoder": wavenet,
    "speechbrain_SepFormer_dual_path": sepformer,
    "hf_FastSpeech2Conformer": fastspeech2,
    "performer": performer,
    "reformer": reformer,
    "mega": mega,
    "ngpt": ngpt,
    "gateloop": gateloop,
    "product_key_memory": pkm,
    "local_attention": local_transformer,
    "hf_StableLm": hf(
        "StableLm",
        "ForCausalLM",
        qk_layernorm=True,
        use_parallel_residual=True,
        num_key_value_heads=4,
    ),
    "hf_Nemotron": hf("Nemotron", num_key_value_heads=2, head_dim=16),
    "hf_MobileBert": mobilebert,
    "hf_ConvNextV2": convnextv2,
    "hf_DecisionTransformer": decision,
    "diffusers_AutoencoderDC": autoencoder_dc,
    "diffusers_StableCascade": cascade,
    "diffusers_AutoencoderKLWan": wan_vae,
    "tsfm_TinyTimeMixer": ttm,
    "tsfm_TSPulse": tspulse,
    "toto": toto,
    "hf_PatchTSMixer": patchtsmixer,
    "torch_frame_TabNet": frame(
        "TabNet", num_layers=2, split_feat_channels=8, split_attn_channels=8, gamma=1.2
    ),
    "torch_frame_Trompt": frame("Trompt", channels=16, num_prompts=8, num_layers=2),
    "tabicl": tabicl,
    "deeptab_SAINT": saint,
    "deepctr_AutoInt": autoint,
    "recbole_SASRec": sasrec,
    "mlgb_DNN": mlgb_linears,
    "sheeprl_CNNEncoder": dreamer,
    "sheeprl_RecurrentModel": gru_cell,
    "se3_transformer": se3,
    "tape_ProteinResNet": tape_resnet,
    "ByteNetLM": bytenet,
    "protein_bert": protein_bert,
    "torchflows_RealNVP": realnvp,
    "torch_pointcloud_PointNet": pointnet,
    "pyg_GraphSAGE_diff_group_norm": sage_dgn,
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
