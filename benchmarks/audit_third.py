"""Audit models of a third set of public libraries, chosen by somebody who saw no audit.

The models are as released, with small settings; the weights are random and so is the
data; nothing is downloaded. Arguments are a tensor, or a dictionary of the arguments by
name. `--out FILE` writes what was found, as `audit_unseen.py` does: what the first run
said is kept, and what is said now is written beside it. It needs what
`make in-the-wild` installs, and what `audit_third.txt` lists.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

# The first of these, as it lets torchvision be imported.
from audit_models import SIZES, compare, images, tokens
from torch import Tensor, nn

PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "diffusers",
    "monai",
    "torch-geometric",
    "speechbrain",
    "asteroid",
    "denoising-diffusion-pytorch",
    "lightly",
    "spandrel",
    "compressai",
    "litgpt",
    "chronos-forecasting",
    "pytorch-forecasting",
    "vocos",
    "labml-nn",
    "open_clip_torch",
    "basicsr",
    "ultralytics",
    "encodec",
    "fair-esm",
    "segment-anything",
    "cellpose",
    "sb3-contrib",
    "titans-pytorch",
    "perceiver-pytorch",
    "facenet-pytorch",
    "pytorchcv",
    "xlstm",
    "enformer-pytorch",
    "conformer",
    "openunmix",
    "torchcrepe",
    "rtdl-revisiting-models",
    "egnn-pytorch",
    "python-doctr",
    "effdet",
    "pytorch-tcn",
    "pytorchvideo",
    "torchgan",
    "pretrainedmodels",
    "torch-rechub",
    "slot-attention",
    "transformer-lens",
)


def without_torchaudio(name: str) -> Any:
    """Import a module that imports torchaudio, of which nothing here is called."""
    importlib.import_module("transformers")  # looks for torchaudio, and finds none
    absent = mock.MagicMock()
    absent.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    absent.__path__ = []
    absent.__version__ = "2.9.0"
    parts = ("", ".transforms", ".functional", ".functional.functional")
    parts = (*parts, ".compliance", ".compliance.kaldi")
    stands_in = {f"torchaudio{p}": absent for p in parts}
    stands_in = {n: m for n, m in stands_in.items() if n not in sys.modules}
    sys.modules.update(stands_in)
    try:
        return importlib.import_module(name)
    finally:
        for one in stands_in:
            del sys.modules[one]


def plain_nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Suppress boxes as torchvision does, without its kernels."""
    order = scores.argsort(descending=True)
    b = boxes[order]
    sides = torch.min(b[:, None, 2:], b[:, 2:]) - torch.max(b[:, None, :2], b[:, :2])
    shared, areas = sides.clamp(min=0).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    near = shared / (areas[:, None] + areas - shared) > iou_threshold
    keep = torch.ones(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if keep[i]:
            keep[i + 1 :] &= ~near[i, i + 1 :]
    return order[keep]


# --- images


def deeplab() -> Any:
    """Return DeepLabV3 with its auxiliary head, and images."""
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5, aux_loss=True
    )
    return model, torch.randn(8, 3, 96, 96)


def fcos() -> Any:
    """Return a detector, images of several sizes, and what stands in them."""
    from torchvision.models.detection import fcos_resnet50_fpn
    from torchvision.ops import boxes

    boxes.nms = plain_nms
    model = fcos_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=160
    )
    pictures, targets = [], []
    for i in range(8):
        pictures.append(torch.rand(3, 96, 96 + 8 * (i % 3)))
        corner = torch.rand(3, 2) * 40
        box = torch.cat([corner, corner + 20 + torch.rand(3, 2) * 20], 1)
        targets.append({"boxes": box, "labels": torch.randint(0, 5, (3,))})
    return model, {"images": pictures, "targets": targets}


def raft() -> Any:
    """Return a model of optical flow, and pairs of images."""
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None)
    first, second = torch.rand(2, 8, 3, 128, 128) * 2 - 1
    return model, {"image1": first, "image2": second, "num_flow_updates": 3}


def quantizable() -> Any:
    """Return MobileNetV2 that could be quantized, and is not."""
    from torchvision.models.quantization import mobilenet_v2

    return mobilenet_v2(weights=None, quantize=False, num_classes=10), torch.randn(
        16, 3, 64, 64
    )


def yolo() -> Any:
    """Return YOLO11 of the smallest size, and images."""
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolo11n.yaml", verbose=False), torch.rand(8, 3, 128, 128)


def efficientdet() -> Any:
    """Return EfficientDet of the smallest size, and images."""
    from effdet import EfficientDet, get_efficientdet_config

    config = get_efficientdet_config("tf_efficientdet_lite0")
    config.num_classes = 5
    config.image_size = (128, 128)
    model = EfficientDet(config, pretrained_backbone=False)
    return model, torch.randn(8, 3, 128, 128)


def rtdetr() -> Any:
    """Return RT-DETR, whose backbone is frozen, and images."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 48, 64, 96],
        depths=[1, 1, 2, 1],
        layer_type="bottleneck",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[48, 64, 96],
        encoder_hidden_dim=64,
        encoder_ffn_dim=128,
        encoder_attention_heads=4,
        d_model=64,
        decoder_in_channels=[64, 64, 64],
        decoder_attention_heads=4,
        decoder_ffn_dim=128,
        decoder_layers=2,
        num_queries=30,
        num_denoising=0,
    )
    model = RTDetrForObjectDetection(config)
    return model, {"pixel_values": torch.randn(8, 3, 128, 128)}


def crnn() -> Any:
    """Return a reader of words, images of them, and the words."""
    from doctr.models import crnn_vgg16_bn

    words = ["hello", "norm", "batch", "layer", "group", "root", "mean", "square"]
    model = crnn_vgg16_bn(pretrained=False, pretrained_backbone=False)
    return model, {
        "x": torch.rand(8, 3, 32, 128),
        "target": words,
        "return_model_output": True,
    }


def sam() -> Any:
    """Return Segment Anything, small, and images with points and boxes."""
    from segment_anything.modeling import (
        ImageEncoderViT,
        MaskDecoder,
        PromptEncoder,
        Sam,
        TwoWayTransformer,
    )

    encoder = ImageEncoderViT(
        img_size=128,
        patch_size=16,
        embed_dim=64,
        depth=4,
        num_heads=4,
        out_chans=64,
        norm_layer=lambda width: nn.LayerNorm(width, eps=1e-6),
        use_rel_pos=True,
        rel_pos_zero_init=True,
        window_size=4,
        global_attn_indexes=(1, 3),
    )
    prompts = PromptEncoder(
        embed_dim=64,
        image_embedding_size=(8, 8),
        input_image_size=(128, 128),
        mask_in_chans=16,
    )
    decoder = MaskDecoder(
        num_multimask_outputs=3,
        transformer=TwoWayTransformer(
            depth=2, embedding_dim=64, mlp_dim=128, num_heads=4
        ),
        transformer_dim=64,
        iou_head_depth=3,
        iou_head_hidden_dim=64,
    )
    model = Sam(image_encoder=encoder, prompt_encoder=prompts, mask_decoder=decoder)
    batch = [
        {
            "image": torch.rand(3, 128, 112) * 255,
            "original_size": (256, 224),
            "point_coords": torch.rand(2, 3, 2) * 112,
            "point_labels": torch.ones(2, 3),
        }
        for _ in range(8)
    ]
    return model, {"batched_input": batch, "multimask_output": True}


def cellpose() -> Any:
    """Return the net of Cellpose 3, and images of two channels."""
    from cellpose.resnet_torch import CPnet

    return CPnet([2, 32, 64, 128, 256], 3, sz=3), torch.rand(8, 2, 64, 64)


def facenet() -> Any:
    """Return the net of FaceNet, and faces."""
    from facenet_pytorch import InceptionResnetV1

    return InceptionResnetV1(pretrained=None), torch.randn(8, 3, 96, 96)


def ibn() -> Any:
    """Return a residual net with instance and batch norms, and images."""
    from pytorchcv.model_provider import get_model

    return get_model("ibn_resnet50", pretrained=False), torch.randn(8, 3, 224, 224)


def nasnet() -> Any:
    """Return NASNet for mobiles, and images."""
    import pretrainedmodels

    model = pretrainedmodels.nasnetamobile(num_classes=1000, pretrained=None)
    return model, torch.randn(4, 3, 224, 224)


def nafnet() -> Any:
    """Return a restorer of images, and images."""
    from spandrel.architectures.NAFNet.__arch.NAFNet_arch import NAFNet

    model = NAFNet(
        width=16, middle_blk_num=1, enc_blk_nums=[1, 1, 2], dec_blk_nums=[1, 1, 1]
    )
    return model, torch.rand(8, 3, 64, 64)


def hyperprior() -> Any:
    """Return a compressor of images, and images."""
    from compressai.models import ScaleHyperprior

    return ScaleHyperprior(32, 48), torch.rand(8, 3, 64, 64)


class BarlowTwins(nn.Module):
    """The model of lightly's example of Barlow Twins."""

    def __init__(self) -> None:
        super().__init__()
        from lightly.models.modules import BarlowTwinsProjectionHead
        from torchvision.models import resnet18

        self.backbone = nn.Sequential(*list(resnet18(weights=None).children())[:-1])
        self.projection_head = BarlowTwinsProjectionHead(512, 256, 256)

    def forward(self, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projections of two views."""
        z0, z1 = (
            self.projection_head(self.backbone(x).flatten(start_dim=1))
            for x in (x0, x1)
        )
        return z0, z1


def barlow() -> Any:
    """Return a model that learns from two views, and the views."""
    x = torch.randn(16, 3, 32, 32)
    views = x + 0.1 * torch.randn(2, *x.shape)
    return BarlowTwins(), {"x0": views[0], "x1": views[1]}


def clip() -> Any:
    """Return CLIP with a residual net, images and texts."""
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(
        embed_dim=64,
        vision_cfg=CLIPVisionCfg(layers=(1, 1, 1, 1), width=16, image_size=64),
        text_cfg=CLIPTextCfg(
            context_length=16, vocab_size=100, width=64, heads=4, layers=2
        ),
    )
    text = torch.randint(1, 99, (8, 16))
    text[:, 10] = 99  # the largest ends a text
    text[:, 11:] = 0
    return model, {"image": torch.randn(8, 3, 64, 64), "text": text}


def segformer() -> Any:
    """Return a transformer that segments, and images."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 64],
        decoder_hidden_size=64,
        num_labels=5,
    )
    model = SegformerForSemanticSegmentation(config)
    return model, {"pixel_values": torch.randn(8, 3, 64, 64)}


def slots() -> Any:
    """Return slot attention, and vectors of places."""
    from slot_attention import SlotAttention

    return SlotAttention(num_slots=5, dim=64, iters=3), torch.randn(8, 49, 64)


# --- GANs


def cycle_generator() -> Any:
    """Return the generator of a CycleGAN, and images."""
    from labml_nn.gan.cycle_gan import GeneratorResNet

    return GeneratorResNet(3, 2), torch.randn(8, 3, 32, 32)


def dcgan_generator() -> Any:
    """Return the generator of a DCGAN, and noise."""
    from torchgan.models import DCGANGenerator

    return DCGANGenerator(encoding_dims=32, step_channels=16), torch.randn(16, 32)


def vgg_discriminator() -> Any:
    """Return a discriminator of BasicSR, and images."""
    from basicsr.archs.discriminator_arch import VGGStyleDiscriminator128

    return VGGStyleDiscriminator128(3, 16), torch.randn(8, 3, 128, 128)


# --- volumes and video


def swin_unetr() -> Any:
    """Return Swin UNETR of two dimensions, and images of one channel."""
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(1, 3, feature_size=12, spatial_dims=2)
    return model, torch.randn(8, 1, 64, 64)


def x3d() -> Any:
    """Return X3D, and clips."""
    from pytorchvideo.models.x3d import create_x3d

    model = create_x3d(
        input_clip_length=4, input_crop_size=64, model_num_class=10, depth_factor=1.0
    )
    return model, torch.randn(8, 3, 4, 64, 64)


class SlowFast(nn.Module):
    """SlowFast, whose own call writes into the list that it is given."""

    def __init__(self) -> None:
        super().__init__()
        from pytorchvideo.models.slowfast import create_slowfast

        self.net = create_slowfast(
            model_num_class=10,
            model_depth=18,
            head_pool_kernel_sizes=((4, 2, 2), (16, 2, 2)),
        )

    def forward(self, slow: Tensor, fast: Tensor) -> Tensor:
        """Return the classes of clips."""
        y: Tensor = self.net([slow, fast])
        return y


def slowfast() -> Any:
    """Return SlowFast, and clips at two rates."""
    clips = torch.randn(8, 3, 16, 64, 64)
    return SlowFast(), {"slow": clips[:, :, ::4], "fast": clips}


# --- language


def cohere() -> Any:
    """Return Cohere with norms of queries and keys, and tokens."""
    return tokens(
        "Cohere",
        "ForCausalLM",
        num_key_value_heads=2,
        intermediate_size=128,
        use_qk_norm=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **SIZES,
    )


def recurrent_gemma() -> Any:
    """Return RecurrentGemma, and tokens."""
    return tokens(
        "RecurrentGemma",
        lru_width=64,
        attention_window_size=8,
        num_key_value_heads=1,
        intermediate_size=128,
        pad_token_id=0,
        **SIZES,
    )


def modern_bert() -> Any:
    """Return ModernBERT, and texts of several lengths."""
    model, x = tokens(
        "ModernBert",
        intermediate_size=96,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=8,
        attn_implementation="eager",
        **SIZES,
    )
    mask = (torch.arange(12) < torch.randint(4, 13, (16, 1))).long()
    return model, {"input_ids": x["input_ids"] * mask, "attention_mask": mask}


def pythia() -> Any:
    """Return Pythia of litgpt, and tokens."""
    from litgpt import GPT, Config

    config = Config.from_name(
        "pythia-14m", n_layer=3, n_embd=64, n_head=4, vocab_size=100, block_size=32
    )
    return GPT(config), torch.randint(0, 100, (16, 12))


def hooked() -> Any:
    """Return a transformer with hooks, whose norms have no weights, and tokens."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=2,
        d_model=64,
        n_ctx=32,
        d_head=16,
        n_heads=4,
        d_mlp=128,
        d_vocab=100,
        act_fn="gelu",
        normalization_type="LNPre",
        device="cpu",
    )
    return HookedTransformer(config), torch.randint(0, 100, (16, 12))


def xlstm() -> Any:
    """Return xLSTM of both kinds of cells, and tokens."""
    from xlstm import (
        FeedForwardConfig,
        mLSTMBlockConfig,
        mLSTMLayerConfig,
        sLSTMBlockConfig,
        sLSTMLayerConfig,
        xLSTMLMModel,
        xLSTMLMModelConfig,
    )

    config = xLSTMLMModelConfig(
        vocab_size=100,
        mlstm_block=mLSTMBlockConfig(
            mlstm=mLSTMLayerConfig(
                conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=4
            )
        ),
        slstm_block=sLSTMBlockConfig(
            slstm=sLSTMLayerConfig(
                backend="vanilla",
                num_heads=4,
                conv1d_kernel_size=4,
                bias_init="powerlaw_blockdependent",
            ),
            feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
        ),
        context_length=16,
        num_blocks=3,
        embedding_dim=64,
        slstm_at=[1],
    )
    model = xLSTMLMModel(config)
    model.reset_parameters()
    return model, torch.randint(0, 100, (8, 16))


def titans() -> Any:
    """Return Titans, and tokens."""
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=100,
        dim=64,
        depth=2,
        segment_len=8,
        dim_head=16,
        heads=4,
        num_persist_mem_tokens=2,
        num_longterm_mem_tokens=4,
    )
    return model, torch.randint(0, 100, (8, 24))


def perceiver() -> Any:
    """Return a perceiver, and images with channels last."""
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        num_freq_bands=4,
        depth=2,
        max_freq=10.0,
        num_latents=16,
        latent_dim=64,
        latent_heads=4,
        latent_dim_head=16,
        cross_dim_head=16,
        num_classes=10,
        self_per_cross_attn=2,
    )
    return model, torch.randn(8, 16, 16, 3)


# --- diffusion


def stable_unet() -> Any:
    """Return a U-net of latent diffusion, latents, times and texts."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
    )
    return model, {
        "sample": torch.randn(8, 4, 16, 16),
        "timestep": torch.randint(0, 1000, (8,)),
        "encoder_hidden_states": torch.randn(8, 7, 32),
    }


def flux() -> Any:
    """Return FLUX, small, and what it is given."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    places = torch.zeros(16, 3)
    places[:, 1] = torch.arange(16) // 4
    places[:, 2] = torch.arange(16) % 4
    return model, {
        "hidden_states": torch.randn(8, 16, 16),
        "encoder_hidden_states": torch.randn(8, 7, 32),
        "pooled_projections": torch.randn(8, 32),
        "timestep": torch.rand(8),
        "img_ids": places,
        "txt_ids": torch.zeros(7, 3),
    }


def autoencoder() -> Any:
    """Return the autoencoder of latent diffusion, and images."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 64),
        norm_num_groups=32,
        sample_size=32,
    )
    return model, torch.randn(8, 3, 32, 32)


def ddpm() -> Any:
    """Return a U-net of diffusion, images and times."""
    from denoising_diffusion_pytorch import Unet

    model = Unet(dim=16, dim_mults=(1, 2, 4), flash_attn=False)
    return model, {
        "x": torch.randn(8, 3, 32, 32),
        "time": torch.randint(0, 1000, (8,)),
    }


# --- sound


def whisper() -> Any:
    """Return Whisper, small, spectrograms and tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=100,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(8, 80, 100),
        "decoder_input_ids": torch.randint(3, 100, (8, 6)),
    }


def encodec() -> Any:
    """Return EnCodec for music, and one second of stereo."""
    kind = without_torchaudio("encodec").EncodecModel
    return kind.encodec_model_48khz(pretrained=False), torch.randn(4, 2, 24000) * 0.1


def ecapa() -> Any:
    """Return a model of speakers, features of several lengths, and the lengths."""
    kind = without_torchaudio("speechbrain.lobes.models.ECAPA_TDNN").ECAPA_TDNN
    model = kind(
        80,
        channels=[64, 64, 64, 64, 192],
        attention_channels=32,
        lin_neurons=48,
    )
    lengths = torch.tensor([1.0, 0.9, 0.8, 0.7, 1.0, 0.6, 0.5, 1.0])
    x = torch.randn(8, 100, 80)
    for one, part in zip(x, lengths, strict=True):
        one[round(float(part) * 100) :] = 0
    return model, {"x": x, "lengths": lengths}


def crdnn() -> Any:
    """Return a recurrent recognizer of speech with light gated units, and features."""
    kind = without_torchaudio("speechbrain.lobes.models.CRDNN").CRDNN
    li_gru = without_torchaudio("speechbrain.nnet.RNN").LiGRU
    for part in (
        "CNN",
        "activations",
        "containers",
        "linear",
        "normalization",
        "pooling",
    ):
        without_torchaudio(f"speechbrain.nnet.{part}")
    model = kind(
        input_shape=[8, 60, 40],
        cnn_channels=[16, 32],
        rnn_class=li_gru,
        rnn_layers=2,
        rnn_neurons=32,
        dnn_neurons=32,
    )
    return model, torch.randn(8, 60, 40)


def tasnet() -> Any:
    """Return Conv-TasNet, and mixtures."""
    kind = without_torchaudio("asteroid.models").ConvTasNet
    model = kind(
        n_src=2, n_blocks=3, n_repeats=2, bn_chan=32, hid_chan=64, n_filters=64
    )
    return model, torch.randn(8, 1, 4000)


def vocos() -> Any:
    """Return the backbone of a vocoder, and spectrograms."""
    kind = without_torchaudio("vocos.models").VocosBackbone
    model = kind(input_channels=100, dim=64, intermediate_dim=128, num_layers=4)
    return model, torch.randn(8, 100, 50)


def conformer() -> Any:
    """Return a conformer, and features."""
    from conformer import Conformer

    model = Conformer(dim=64, depth=3, dim_head=16, heads=4)
    return model, torch.randn(8, 40, 64)


def unmix() -> Any:
    """Return Open-Unmix, and spectrograms."""
    kind = without_torchaudio("openunmix.model").OpenUnmix
    model = kind(nb_bins=257, nb_channels=2, hidden_size=64, nb_layers=2, max_bin=200)
    return model, torch.rand(8, 2, 257, 30)


def crepe() -> Any:
    """Return a model of pitch, and frames."""
    kind = without_torchaudio("torchcrepe").Crepe
    frames = torch.randn(16, 1024)
    frames = frames - frames.mean(1, keepdim=True)
    return kind("tiny"), frames / frames.std(1, keepdim=True)


# --- series and tables


def patchtst() -> Any:
    """Return PatchTST, and series."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=3,
        context_length=64,
        prediction_length=8,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return PatchTSTForPrediction(config), {"past_values": torch.randn(8, 64, 3)}


def informer() -> Any:
    """Return Informer, and series with what is missing of them."""
    from transformers import InformerConfig, InformerForPrediction

    config = InformerConfig(
        prediction_length=8,
        context_length=24,
        lags_sequence=[1, 2, 3],
        num_time_features=2,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    seen = (torch.rand(16, 27) > 0.1).float()
    return InformerForPrediction(config), {
        "past_values": torch.randn(16, 27),
        "past_time_features": torch.randn(16, 27, 2),
        "past_observed_mask": seen,
        "future_values": torch.randn(16, 8),
        "future_time_features": torch.randn(16, 8, 2),
    }


def chronos_bolt() -> Any:
    """Return Chronos-Bolt, and series."""
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        vocab_size=2,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    config.chronos_config = {
        "context_length": 64,
        "input_patch_size": 8,
        "input_patch_stride": 8,
        "prediction_length": 8,
        "quantiles": [0.1, 0.5, 0.9],
        "use_reg_token": True,
    }
    return ChronosBoltModelForForecasting(config), {
        "context": torch.randn(8, 64) * 3 + 5
    }


def fusion() -> Any:
    """Return a temporal fusion transformer, and what its loader gives."""
    import pandas
    from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
    from pytorch_forecasting.data.examples import generate_ar_data

    table = generate_ar_data(seasonality=10.0, timesteps=60, n_series=20, seed=1)
    table["date"] = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(
        table.time_idx, "D"
    )
    series = TimeSeriesDataSet(
        table,
        time_idx="time_idx",
        target="value",
        group_ids=["series"],
        max_encoder_length=24,
        min_encoder_length=12,
        max_prediction_length=6,
        time_varying_unknown_reals=["value"],
        time_varying_known_reals=["time_idx"],
        static_categoricals=[],
        add_relative_time_idx=True,
        add_target_scales=True,
    )
    model = TemporalFusionTransformer.from_dataset(
        series, hidden_size=16, attention_head_size=2, hidden_continuous_size=8
    )
    x, _ = next(iter(series.to_dataloader(train=True, batch_size=16, num_workers=0)))
    return model, {"x": x}


def tcn() -> Any:
    """Return a causal temporal convolutional network with batch norms, and series."""
    from pytorch_tcn import TCN

    model = TCN(4, [16, 16, 32], kernel_size=3, use_norm="batch_norm", causal=True)
    return model, torch.randn(16, 4, 50)


def tabular() -> Any:
    """Return the residual net of tables, and rows."""
    from rtdl_revisiting_models import ResNet

    model = ResNet(
        d_in=12,
        d_out=3,
        n_blocks=3,
        d_block=64,
        d_hidden_multiplier=2.0,
        dropout1=0.2,
        dropout2=0.0,
    )
    return model, torch.randn(64, 12)


def din() -> Any:
    """Return a deep interest network, users, items and histories."""
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.ranking import DIN

    features = [SparseFeature("user", 50, embed_dim=8)]
    target = [SparseFeature("item", 100, embed_dim=8)]
    history = [
        SequenceFeature(
            "history", 100, embed_dim=8, pooling="concat", shared_with="item"
        )
    ]
    model = DIN(
        features,
        history,
        target,
        mlp_params={"dims": [64, 32]},
        attention_mlp_params={"dims": [32, 16]},
    )
    past = torch.randint(1, 100, (64, 10))
    past = past * (torch.arange(10) < torch.randint(2, 11, (64, 1)))
    x = {"user": torch.randint(0, 50, (64,)), "item": torch.randint(0, 100, (64,))}
    return model, {"x": x | {"history": past}}


def crossq() -> Any:
    """Return the actor of CrossQ, and observations."""
    import gymnasium
    import numpy
    from sb3_contrib.crossq.policies import CrossQPolicy

    model = CrossQPolicy(
        gymnasium.spaces.Box(-numpy.inf, numpy.inf, (6,)),
        gymnasium.spaces.Box(-1.0, 1.0, (2,)),
        lr_schedule=lambda _: 1e-3,
        net_arch={"pi": [64, 64], "qf": [64, 64]},
    )
    return model.actor, torch.randn(64, 6)


def crossq_critic() -> Any:
    """Return the critic of CrossQ, observations and actions."""
    import gymnasium
    import numpy
    from sb3_contrib.crossq.policies import CrossQPolicy

    model = CrossQPolicy(
        gymnasium.spaces.Box(-numpy.inf, numpy.inf, (6,)),
        gymnasium.spaces.Box(-1.0, 1.0, (2,)),
        lr_schedule=lambda _: 1e-3,
        net_arch={"pi": [64, 64], "qf": [64, 64]},
    )
    x = {"obs": torch.randn(64, 6), "actions": torch.rand(64, 2) * 2 - 1}
    return model.critic, x


# --- molecules, proteins, graphs


def esm() -> Any:
    """Return ESM-2, small, and proteins of several lengths."""
    from esm import Alphabet
    from esm.model.esm2 import ESM2

    alphabet = Alphabet.from_architecture("ESM-1b")
    model = ESM2(num_layers=3, embed_dim=64, attention_heads=4, alphabet=alphabet)
    ids = torch.randint(4, 24, (8, 20))
    ids[:, 0] = alphabet.cls_idx
    for one, length in zip(ids, (20, 18, 16, 14, 12, 20, 19, 10), strict=True):
        one[length - 1] = alphabet.eos_idx
        one[length:] = alphabet.padding_idx
    return model, ids


def enformer() -> Any:
    """Return Enformer, small, and sequences of bases."""
    from enformer_pytorch import Enformer

    model = Enformer.from_hparams(
        dim=96,
        depth=2,
        heads=4,
        target_length=4,
        num_downsamples=5,
        dim_divisible_by=8,
        output_heads={"human": 6, "mouse": 3},
        use_tf_gamma=False,
    )
    return model, torch.randint(0, 4, (4, 512))


def egnn() -> Any:
    """Return an equivariant network with all its norms, and masked molecules."""
    from egnn_pytorch import EGNN_Network

    model = EGNN_Network(depth=2, dim=32, num_tokens=21, norm_coors=True, m_dim=16)
    mask = torch.arange(12) < torch.randint(6, 13, (8, 1))
    return model, {
        "feats": torch.randint(0, 21, (8, 12)),
        "coors": torch.randn(8, 12, 3),
        "mask": mask,
    }


def joined(graphs: int = 16, nodes: int = 12) -> dict[str, Tensor]:
    """Return several graphs as one."""
    edges = []
    for first in range(0, graphs * nodes, nodes):
        ends = torch.randint(0, nodes, (2, 30))
        edges.append(torch.cat([ends, ends.flip(0)], 1) + first)
    x = torch.randn(graphs * nodes, 8)
    return {"x": x, "edge_index": torch.cat(edges, 1)}


def pna() -> Any:
    """Return a principal neighbourhood aggregation with batch norms, and graphs."""
    from torch_geometric.nn.models import PNA

    model = PNA(
        8,
        32,
        3,
        out_channels=4,
        norm="batch_norm",
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.tensor([0, 2, 8, 30, 60, 50, 30, 12]),
    )
    return model, joined()


def pair_norm_gcn() -> Any:
    """Return a graph convolutional network with pair norms, and one graph."""
    from torch_geometric.nn.models import GCN

    return GCN(8, 32, 4, out_channels=4, norm="pair_norm"), joined(1, 100)


def linkx() -> Any:
    """Return LINKX with its batch norms, and one graph."""
    from torch_geometric.nn.models import LINKX

    model = LINKX(100, 8, 32, 4, num_layers=2, num_edge_layers=2, num_node_layers=2)
    return model, joined(1, 100)


MODELS: dict[str, Callable[[], Any]] = {
    # images
    "timm_xcit_nano_12_p16_224": lambda: images(
        "xcit_nano_12_p16_224", examples=8, img_size=64
    ),
    "timm_resnetv2_50d_evos": lambda: images("resnetv2_50d_evos", examples=8),
    "timm_efficientvit_b0": lambda: images("efficientvit_b0"),
    "tv_deeplabv3_mobilenet": deeplab,
    "tv_fcos_resnet50_fpn": fcos,
    "tv_raft_small": raft,
    "tv_quantizable_mobilenet_v2": quantizable,
    "ultralytics_yolo11n": yolo,
    "effdet_lite0": efficientdet,
    "hf_RTDetr": rtdetr,
    "hf_Segformer": segformer,
    "doctr_crnn_vgg16_bn": crnn,
    "segment_anything": sam,
    "cellpose_CPnet": cellpose,
    "facenet_InceptionResnetV1": facenet,
    "pytorchcv_ibn_resnet50": ibn,
    "pretrainedmodels_nasnetamobile": nasnet,
    "spandrel_NAFNet": nafnet,
    "compressai_ScaleHyperprior": hyperprior,
    "lightly_BarlowTwins": barlow,
    "open_clip_RN": clip,
    "slot_attention": slots,
    # GANs
    "labml_CycleGAN_generator": cycle_generator,
    "torchgan_DCGAN_generator": dcgan_generator,
    "basicsr_VGGStyleDiscriminator128": vgg_discriminator,
    # volumes and video
    "monai_SwinUNETR": swin_unetr,
    "pytorchvideo_x3d": x3d,
    "pytorchvideo_slowfast": slowfast,
    # language
    "hf_Cohere": cohere,
    "hf_RecurrentGemma": recurrent_gemma,
    "hf_ModernBert": modern_bert,
    "litgpt_pythia": pythia,
    "transformer_lens_LNPre": hooked,
    "xlstm_LM": xlstm,
    "titans_MAC": titans,
    "perceiver_pytorch": perceiver,
    # diffusion
    "diffusers_UNet2DCondition": stable_unet,
    "diffusers_Flux": flux,
    "diffusers_AutoencoderKL": autoencoder,
    "denoising_diffusion_Unet": ddpm,
    # sound
    "hf_Whisper": whisper,
    "encodec_48khz": encodec,
    "speechbrain_ECAPA_TDNN": ecapa,
    "speechbrain_CRDNN_LiGRU": crdnn,
    "asteroid_ConvTasNet": tasnet,
    "vocos_backbone": vocos,
    "conformer": conformer,
    "openunmix": unmix,
    "torchcrepe_tiny": crepe,
    # series and tables
    "hf_PatchTST": patchtst,
    "hf_Informer": informer,
    "chronos_bolt": chronos_bolt,
    "pytorch_forecasting_TFT": fusion,
    "pytorch_tcn_batch_norm": tcn,
    "rtdl_ResNet": tabular,
    "torch_rechub_DIN": din,
    "sb3_CrossQ_actor": crossq,
    "sb3_CrossQ_critic": crossq_critic,
    # molecules, proteins, graphs
    "fair_esm_ESM2": esm,
    "enformer": enformer,
    "egnn": egnn,
    "pyg_PNA_batch_norm": pna,
    "pyg_GCN_pair_norm": pair_norm_gcn,
    "pyg_LINKX": linkx,
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
