"""Audit models of public libraries that nobody had looked at while audits were written.

The weights are random and so is the data; nothing is downloaded. `--out FILE` writes
what was found: a record that holds what the first run said, of these models and of some
that need more packages, keeps it, and what is said now is written beside it. It needs
what `make in-the-wild` installs, and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# The first of these, as it lets torchvision be imported.
from audit_models import SIZES, compare, images, tokens
from diffusers import DiTTransformer2DModel, UNet2DModel
from monai.networks import nets
from pytorch_tabnet.tab_network import TabNet
from segmentation_models_pytorch import FPN, DeepLabV3Plus, UnetPlusPlus
from torch_geometric.nn import GIN, Polynormer, SGFormer
from torchvision import models as vision
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2ConformerConfig,
    Wav2Vec2ConformerModel,
    Wav2Vec2Model,
)
from vit_pytorch.cvt import CvT
from x_transformers import Decoder, TransformerWrapper

PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "segmentation_models_pytorch",
    "monai",
    "diffusers",
    "torch-geometric",
    "pytorch-tabnet",
    "x-transformers",
    "vit-pytorch",
)
DENSE: dict[str, Any] = {"intermediate_size": 128, **SIZES}


def of_torchvision(name: str, size: int = 64, **settings: Any) -> Any:
    """Return a model of torchvision, and images."""
    model = getattr(vision, name)(weights=None, num_classes=10, **settings)
    return model, torch.randn(16, 3, size, size)


def segments(kind: Any, encoder: str) -> Any:
    """Return a model that segments, and images."""
    model = kind(encoder_name=encoder, encoder_weights=None, classes=3)
    return model, torch.randn(8, 3, 64, 64)


def segresnet() -> Any:
    """Return a model that segments, and volumes."""
    model = nets.SegResNet(in_channels=1, out_channels=2)
    return model, torch.randn(8, 1, 16, 16, 16)


def dynunet() -> Any:
    """Return a U-net with two outputs, and images of one channel."""
    model = nets.DynUNet(
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[16, 32, 64],
        deep_supervision=True,
        deep_supr_num=1,
    )
    return model, torch.randn(8, 1, 32, 32)


def deberta() -> Any:
    """Return DeBERTa with relative positions and a convolution."""
    return tokens(
        "DebertaV2",
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        conv_kernel_size=3,
        conv_act="gelu",
        **DENSE,
    )


def gpt2() -> Any:
    """Return GPT-2 with its head."""
    small = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 32}
    return tokens("GPT2", "LMHeadModel", bos_token_id=0, eos_token_id=0, **small)


def bart() -> Any:
    """Return an encoder and decoder."""
    model, x = tokens(
        "Bart",
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=64,
    )
    return model, x | {"decoder_input_ids": x["input_ids"][:, :5]}


def mamba2() -> Any:
    """Return a state space model."""
    return tokens(
        "Mamba2",
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=8,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )


def unet() -> Any:
    """Return a U-net of diffusion, images and times."""
    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64, 64),
        norm_num_groups=32,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    x = {"sample": torch.randn(8, 3, 32, 32)}
    return model, x | {"timestep": torch.randint(0, 1000, (8,))}


def dit() -> Any:
    """Return a transformer of diffusion, whose norms are given times and classes."""
    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=3,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_num_groups=4,
    )
    return model, {
        "hidden_states": torch.randn(8, 4, 16, 16),
        "timestep": torch.randint(0, 1000, (8,)),
        "class_labels": torch.randint(0, 1000, (8,)),
    }


def sounds(config: Any, model: Any, **settings: Any) -> Any:
    """Return a small model of speech, and half a second."""
    small = {**DENSE, "conv_dim": (32,) * 7, "vocab_size": 32}
    made = model(config(apply_spec_augment=False, **small, **settings))
    return made, {"input_values": torch.randn(8, 8000)}


def graphs() -> dict[str, Any]:
    """Return sixteen graphs of twelve nodes as one."""
    edges = []
    for first in range(0, 16 * 12, 12):
        ends = torch.randint(0, 12, (2, 36))
        edges.append(torch.cat([ends, ends.flip(0)], 1) + first)
    batch = torch.arange(16).repeat_interleave(12)
    x = torch.randn(16 * 12, 8)
    return {"x": x, "edge_index": torch.cat(edges, 1), "batch": batch}


def tabnet() -> Any:
    """Return a model of tables, and rows."""
    model = TabNet(
        input_dim=12,
        output_dim=3,
        group_attention_matrix=torch.eye(12),
        virtual_batch_size=128,
    )
    return model, torch.randn(256, 12)


def decoder() -> Any:
    """Return a decoder with RMS norms around its branches and on queries and keys."""
    layers = Decoder(
        dim=64,
        depth=3,
        heads=4,
        use_rmsnorm=True,
        sandwich_norm=True,
        attn_qk_norm=True,
        rotary_pos_emb=True,
    )
    model = TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers)
    return model, torch.randint(0, 100, (16, 16))


def cvt() -> Any:
    """Return a convolutional transformer, and images."""
    widths = {"s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 64}
    model = CvT(num_classes=10, s2_heads=2, s3_heads=4, s3_depth=3, **widths)
    return model, torch.randn(8, 3, 64, 64)


MODELS: dict[str, Callable[[], Any]] = {
    # images
    "tv_densenet121": lambda: of_torchvision("densenet121"),
    "tv_googlenet": lambda: of_torchvision("googlenet", 96, init_weights=False),
    "tv_shufflenet_v2_x0_5": lambda: of_torchvision("shufflenet_v2_x0_5"),
    "tv_regnet_x_400mf": lambda: of_torchvision("regnet_x_400mf"),
    "tv_mnasnet0_5": lambda: of_torchvision("mnasnet0_5"),
    "levit_128s": lambda: images("levit_128s", 224, 8),
    "resnetv2_50x1_bit": lambda: images("resnetv2_50x1_bit", examples=8),
    "nf_regnet_b0": lambda: images("nf_regnet_b0"),
    "cait_xxs24_224": lambda: images("cait_xxs24_224", img_size=64),
    "repvgg_a0": lambda: images("repvgg_a0"),
    "smp_UnetPlusPlus_resnet18": lambda: segments(UnetPlusPlus, "resnet18"),
    "smp_FPN_mobilenet_v2": lambda: segments(FPN, "mobilenet_v2"),
    "smp_DeepLabV3Plus_resnet18": lambda: segments(DeepLabV3Plus, "resnet18"),
    "monai_SegResNet": segresnet,
    "monai_DynUNet": dynunet,
    # language
    "DebertaV2": deberta,
    "GPT2": gpt2,
    "Gemma2": lambda: tokens(
        "Gemma2", num_key_value_heads=2, head_dim=16, pad_token_id=0, **DENSE
    ),
    "Qwen3": lambda: tokens(
        "Qwen3", "ForCausalLM", num_key_value_heads=2, head_dim=16, **DENSE
    ),
    "Bart": bart,
    "Mixtral": lambda: tokens(
        "Mixtral", num_key_value_heads=2, num_local_experts=4, **DENSE
    ),
    "Mamba2": mamba2,
    "Olmo2": lambda: tokens("Olmo2", num_key_value_heads=4, **DENSE),
    # diffusion and sound
    "diffusers_UNet2DModel": unet,
    "diffusers_DiT": dit,
    "Wav2Vec2": lambda: sounds(
        Wav2Vec2Config,
        Wav2Vec2Model,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    ),
    "Wav2Vec2Conformer": lambda: sounds(
        Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel, feat_extract_norm="layer"
    ),
    # graphs and tables
    "pyg_GIN_graph_norm": lambda: (
        GIN(8, 32, 3, out_channels=4, norm="graph_norm"),
        graphs(),
    ),
    "pyg_Polynormer": lambda: (Polynormer(8, 32, 4), graphs()),
    "pyg_SGFormer": lambda: (SGFormer(8, 32, 4), graphs()),
    "pytorch_tabnet": tabnet,
    # other transformers
    "x_transformers_decoder": decoder,
    "vit_pytorch_CvT": cvt,
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
