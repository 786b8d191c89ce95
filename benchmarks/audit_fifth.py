"""Audit a fifth set of public models, chosen by somebody who saw no audit.

As `audit_fourth.py`, but most models have been trained a little, or have had batches
passed in training mode. It needs what that needs, and what `audit_fifth.txt` lists.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch

# The first of these, as it lets torchvision be imported.
from audit_fourth import standins
from audit_models import compare
from torch import nn

R = torch.randn
integers = torch.randint
PACKAGES = (
    "careamics",
    "pythae",
    "pyannote.audio",
    "pfrl",
    "pykeen",
    "darts",
    "resnest",
    "geffnet",
    "uniformer-pytorch",
    "tab-transformer-pytorch",
    "alphafold2-pytorch",
    "anomalib",
    "chgnet",
    "cebra",
    "pytorch3dunet",
    "unimol_tools",
    "audio-diffusion-pytorch",
    "g-mlp-pytorch",
    "iunets",
    "scvi-tools",
    "aviary-models",
    "geometric-vector-perceptron",
    "timm",
    "pytorchcv",
    "transformers",
    "diffusers",
    "monai",
    "torch-geometric",
    "speechbrain",
    "segmentation_models_pytorch",
    "torchrl",
    "deepinv",
    "e3nn",
    "tabm",
    "complextorch",
    "normflows",
    "braindecode",
    "escnn",
    "torch-pointcloud",
)


def bare(package) -> Any:
    """A package without its own __init__ (so that only a submodule is imported)."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    m = types.ModuleType(package)
    m.__path__ = list(spec.submodule_search_locations)
    m.__spec__ = spec
    sys.modules[package] = m


def call(m, x) -> Any:
    """Call a model with x as all its arguments."""
    if isinstance(x, dict):
        return m(**x)
    if isinstance(x, tuple):
        return m(*x)
    return m(x)


def leaves(o) -> Any:
    """Yield the tensors of numbers in an output."""
    if isinstance(o, torch.Tensor):
        if o.is_floating_point() or o.is_complex():
            yield o
    elif hasattr(o, "items"):
        for _, v in o.items():
            yield from leaves(v)
    elif isinstance(o, (list, tuple)):
        for v in o:
            yield from leaves(v)


def fit(m, make, steps=10, lr=1e-3) -> Any:
    """Train a little, on random data."""
    m.train()
    opt = torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr)
    for _ in range(steps):
        loss = 0
        for o in leaves(call(m, make())):
            if o.requires_grad:
                loss = loss + (o - R(o.shape)).abs().pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return m


def passes(m, make, n=5) -> Any:
    """Pass some batches in training mode."""
    m.train()
    with torch.no_grad():
        for _ in range(n):
            call(m, make())
    return m


def careamics_unet() -> Any:
    """Make careamics_UNet_n2v2."""
    bare("careamics")
    bare("careamics.models")
    bare("careamics.config")
    from careamics.models.unet.unet import UNet

    def mk():
        return R(8, 1, 32, 32) * 3 + 5

    m = UNet(conv_dims=2, depth=2, num_channels_init=8, n2v2=True)
    return fit(m, mk, 15), mk()


def pythae_vae() -> Any:
    """Make pythae_VAE_celeba."""
    from pythae.models import VAE, VAEConfig
    from pythae.models.nn.benchmarks.celeba.convnets import (
        Decoder_Conv_AE_CELEBA,
        Encoder_Conv_VAE_CELEBA,
    )

    c = VAEConfig(input_dim=(3, 64, 64), latent_dim=8)
    m = VAE(c, encoder=Encoder_Conv_VAE_CELEBA(c), decoder=Decoder_Conv_AE_CELEBA(c))

    def mk():
        return {"inputs": {"data": torch.rand(4, 3, 64, 64)}}

    return passes(m, mk, 3), mk()


def pyannote_xvector() -> Any:
    """Make pyannote_SincNet."""
    for p in (
        "pyannote.audio",
        "pyannote.audio.models",
        "pyannote.audio.models.blocks",
        "pyannote.audio.utils",
    ):
        bare(p)
    with standins("torchaudio"):
        from pyannote.audio.models.blocks.sincnet import SincNet
    return SincNet(stride=10), R(8, 1, 16000)


def pfrl_mlpbn() -> Any:
    """Make pfrl_MLPBN."""
    bare("pfrl")
    bare("pfrl.nn")
    from pfrl.nn.mlp_bn import MLPBN

    def mk():
        return R(32, 12) * 4 + 2

    return fit(MLPBN(12, 4, (32, 32), normalize_output=True), mk, 20), mk()


def pfrl_empirical() -> Any:
    """Make pfrl_EmpiricalNormalization."""
    bare("pfrl")
    bare("pfrl.nn")
    from pfrl.nn.empirical_normalization import EmpiricalNormalization

    m = nn.Sequential(
        EmpiricalNormalization(12), nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4)
    )

    def mk():
        return R(32, 12) * 4 + 2

    return fit(m, mk, 20), mk()


def pykeen_conve() -> Any:
    """Make pykeen_ConvE."""
    bare("pykeen")
    with standins("optuna", "rexmex", "torch_ppr", "click_default_group"):
        from pykeen.nn.modules import ConvEInteraction
    m = ConvEInteraction(
        embedding_dim=64, embedding_height=8, embedding_width=8, output_channels=16
    )

    def mk():
        return (R(32, 64), R(32, 64), (R(32, 64), R(32)))

    return passes(m, mk, 10), mk()


def darts_import() -> Any:
    """Make what several of the models take."""
    return standins(
        "holidays",
        "nfoursid",
        "pyod",
        "shap",
        "statsmodels",
        "statsforecast",
        "xarray",
        "lightgbm",
        "catboost",
        "prophet",
        "xgboost",
        "pmdarima",
    )


def darts_tsmixer() -> Any:
    """Make darts_TSMixer."""
    with darts_import():
        from darts.models.forecasting.tsmixer_model import (
            _TSMixerModule,
        )
    m = _TSMixerModule(
        input_dim=3,
        output_dim=3,
        past_cov_dim=0,
        future_cov_dim=0,
        static_cov_dim=0,
        nr_params=1,
        hidden_size=16,
        ff_size=16,
        num_blocks=2,
        activation="ReLU",
        dropout=0.1,
        norm_type="TimeBatchNorm2d",
        normalize_before=True,
        input_chunk_length=24,
        output_chunk_length=8,
        use_reversible_instance_norm=True,
    )
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.net = m

        def forward(s, x):
            o = s.net(PLModuleInput(x))
            return (
                o
                if isinstance(o, torch.Tensor)
                else getattr(
                    o, o.__dataclass_fields__ and next(iter(o.__dataclass_fields__))
                )
            )

    def mk():
        return R(16, 24, 3).cumsum(1)

    return fit(Net(), mk, 20), mk()


def darts_transformer() -> Any:
    """Make darts_Transformer."""
    with darts_import():
        from darts.models.forecasting.transformer_model import _TransformerModule
    m = _TransformerModule(
        input_size=3,
        output_size=3,
        nr_params=1,
        d_model=32,
        nhead=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=64,
        dropout=0.1,
        activation="SwiGLU",
        norm_type="RMSNorm",
        input_chunk_length=24,
        output_chunk_length=8,
    )
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    return m, {"x_in": PLModuleInput(R(16, 24, 3))}


def resnest_() -> Any:
    """Make resnest."""
    from resnest.torch.resnet import Bottleneck, ResNet

    m = ResNet(
        Bottleneck,
        [1, 1, 1, 1],
        radix=2,
        groups=1,
        bottleneck_width=16,
        deep_stem=True,
        stem_width=8,
        avg_down=True,
        avd=True,
        num_classes=10,
    )

    def mk():
        return R(8, 3, 64, 64)

    return fit(m, mk, 8), mk()


def geffnet_cc() -> Any:
    """Make geffnet_cc_b0."""
    import geffnet

    m = geffnet.create_model("efficientnet_cc_b0_4e", pretrained=False, num_classes=10)

    def mk():
        return R(8, 3, 64, 64)

    return passes(m, mk, 5).eval(), mk()


def uniformer() -> Any:
    """Make uniformer."""
    from uniformer_pytorch import Uniformer

    return Uniformer(
        num_classes=10, dims=(16, 24, 32, 48), depths=(1, 1, 1, 1), dim_head=8
    ), R(4, 3, 8, 64, 64)


def ft_transformer() -> Any:
    """Make tab_FTTransformer."""
    from tab_transformer_pytorch import FTTransformer

    m = FTTransformer(
        categories=(5, 6, 7), num_continuous=5, dim=32, depth=2, heads=4, dim_out=3
    )

    def mk():
        return (integers(0, 5, (32, 3)), R(32, 5))

    return fit(m, mk, 15), mk()


def alphafold2() -> Any:
    """Make alphafold2."""
    types.ModuleType("alphafold2_pytorch.utils")
    with standins(
        "mdtraj",
        "sidechainnet",
        "proDy",
        "Bio",
        "nglview",
        "py3Dmol",
        "pytorch3d",
        "mp_nerf",
        "prody",
    ):
        from alphafold2_pytorch.alphafold2 import Alphafold2
    m = Alphafold2(
        dim=32,
        depth=2,
        heads=2,
        dim_head=16,
        extra_msa_evoformer_layers=1,
        predict_coords=False,
    )
    return m, {
        "seq": integers(0, 21, (2, 10)),
        "msa": integers(0, 21, (2, 4, 10)),
        "mask": torch.ones(2, 10).bool(),
        "msa_mask": torch.ones(2, 4, 10).bool(),
    }


def anomalib_import() -> Any:
    """Make what several of the models take."""
    return standins(
        "jsonargparse",
        "cv2",
        "lightning_habana",
        "imgaug",
        "openvino",
        "wandb",
        "rich_argparse",
        "freia",
        "onnx",
        "ftfy",
        "docstring_parser",
        "open_clip",
        "skimage",
        "av",
        "tifffile",
        "dotenv",
        "python_dotenv",
        "matplotlib_venn",
        "anomalib.data",
        "anomalib.engine",
        "anomalib.deploy",
    )


def ganomaly() -> Any:
    """Make anomalib_Ganomaly."""
    with anomalib_import():
        from anomalib.models.image.ganomaly.torch_model import GanomalyModel
    m = GanomalyModel((32, 32), 3, 16, 20)

    def mk():
        return R(8, 3, 32, 32)

    return fit(m, mk, 10), mk()


def fastflow() -> Any:
    """Make anomalib_FastFlow."""
    with anomalib_import():
        from anomalib.models.image.fastflow.torch_model import FastflowModel
    return FastflowModel((64, 64), "resnet18", pre_trained=False, flow_steps=2), R(
        4, 3, 64, 64
    )


def chgnet_mlp() -> Any:
    """Make chgnet_GatedMLP."""
    with standins("pymatgen", "ase", "nvidia_smi", "pynvml"):
        bare("chgnet")
        bare("chgnet.model")
        from chgnet.model.functions import GatedMLP
    m = GatedMLP(32, 16, hidden_dim=24, norm="batch")

    def mk():
        return R(128, 32)

    return fit(m, mk, 30), mk()


def cebra_offset10() -> Any:
    """Make cebra_Offset10."""
    with standins("literate_dataclasses", "h5py", "ripser", "nlb_tools"):
        bare("cebra")
        import cebra.registry

        sys.modules["cebra"].registry = cebra.registry
        bare("cebra.data")
        bare("cebra.models")
        cebra.registry.add_helper_functions("cebra.models")
        import cebra.data.datatypes

        sys.modules["cebra"].data = sys.modules["cebra.data"]
        import cebra.models.model
    m = sys.modules["cebra.models.model"].Offset10Model(8, 32, 4, normalize=True)
    return m, R(32, 8, 10)


def unet3d_se() -> Any:
    """Make pytorch3dunet_ResidualSE."""
    with standins("h5py", "hdbscan", "skimage", "cv2"):
        bare("pytorch3dunet")
        bare("pytorch3dunet.unet3d")
        from pytorch3dunet.unet3d.model import ResidualUNetSE3D
    m = ResidualUNetSE3D(
        1,
        2,
        f_maps=(8, 16, 32),
        layer_order="gcr",
        num_groups=4,
        num_levels=3,
        is_segmentation=False,
    )

    def mk():
        return R(2, 1, 16, 16, 16)

    return fit(m, mk, 5), mk()


def unimol() -> Any:
    """Make unimol_encoder."""
    bare("unimol_tools")
    bare("unimol_tools.models")
    from unimol_tools.models.transformers import TransformerEncoderWithPair

    m = TransformerEncoderWithPair(
        encoder_layers=2,
        embed_dim=32,
        ffn_embed_dim=64,
        attention_heads=4,
        max_seq_len=32,
    )
    pad = torch.zeros(4, 12).bool()
    pad[0, 9:] = True
    pad[2, 7:] = True
    return m, {"emb": R(4, 12, 32), "attn_mask": R(16, 12, 12), "padding_mask": pad}


def audio_diffusion() -> Any:
    """Make audio_diffusion_UNetV0."""
    with standins("torchaudio", "audio_encoders_pytorch", "data_science_types"):
        from audio_diffusion_pytorch import UNetV0
    m = UNetV0(
        dim=1,
        in_channels=2,
        channels=[8, 32, 64],
        factors=[1, 4, 4],
        items=[1, 1, 1],
        attentions=[0, 0, 1],
        attention_heads=4,
        attention_features=16,
        resnet_groups=4,
        modulation_features=32,
    )
    return m, {"x": R(4, 2, 256), "time": torch.rand(4)}


def gmlp() -> Any:
    """Make gmlp."""
    from g_mlp_pytorch import gMLP

    m = gMLP(num_tokens=100, dim=32, depth=3, seq_len=16, causal=True)

    def mk():
        return integers(0, 100, (8, 16))

    return fit(m, mk, 15), mk()


def iunet() -> Any:
    """Make iunet."""
    from iunets import iUNet

    return iUNet(4, (2, 2, 2), dim=2, disable_custom_gradient=True, verbose=0), R(
        8, 4, 32, 32
    )


def scvi_vae() -> Any:
    """Make scvi_VAE."""
    with standins(
        "anndata",
        "mudata",
        "docrep",
        "ml_collections",
        "sparse",
        "xarray",
        "scanpy",
        "hyperopt",
        "ray",
        "numpyro",
        "jax",
        "flax",
        "optax",
        "chex",
        "annoy",
        "pynndescent",
        "igraph",
        "leidenalg",
        "gdown",
        "h5py",
    ):
        from scvi.module import VAE
    m = VAE(
        200,
        n_batch=2,
        n_hidden=32,
        n_latent=5,
        n_layers=2,
        use_layer_norm="decoder",
        use_batch_norm="encoder",
    )

    def mk():
        return {
            "tensors": {
                "X": torch.poisson(torch.rand(64, 200) * 4),
                "batch": integers(0, 2, (64, 1)),
                "labels": torch.zeros(64, 1).long(),
            },
            "compute_loss": False,
        }

    return passes(m, mk, 10), mk()


def aviary_cgcnn() -> Any:
    """Make aviary_CGCNN."""
    with standins("pymatgen", "ase", "wandb", "matbench_discovery", "pymatviz"):
        from aviary.cgcnn.model import DescriptorNetwork
    m = DescriptorNetwork(elem_emb_len=20, nbr_fea_len=12, elem_fea_len=16, n_graph=2)
    n, e = 40, 160

    def mk():
        return (R(n, 20), R(e, 12), integers(0, n, (e,)), integers(0, n, (e,)))

    return fit(m, mk, 15), mk()


def gvp_net() -> Any:
    """Make gvp_network."""
    from geometric_vector_perceptron import GVP, GVPDropout, GVPLayerNorm

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.g = nn.ModuleList(
                [
                    GVP(
                        dim_vectors_in=3,
                        dim_vectors_out=3,
                        dim_feats_in=16,
                        dim_feats_out=16,
                        vector_gating=True,
                    )
                    for _ in range(3)
                ]
            )
            s.n = nn.ModuleList([GVPLayerNorm(16) for _ in range(3)])
            s.d = GVPDropout(0.1)
            s.out = nn.Linear(16, 2)

        def forward(s, feats, vectors):
            for g, n in zip(s.g, s.n, strict=False):
                f, v = s.d(*g((feats, vectors)))
                feats, vectors = n(feats + f, vectors + v)
            return s.out(feats)

    def mk():
        return {"feats": R(32, 16), "vectors": R(32, 3, 3)}

    return fit(Net(), mk, 15), mk()


def timm_(name, size=64, n=8, how=None, steps=5, **k) -> Any:
    """Make what several of the models take."""

    def make():
        import timm

        m = timm.create_model(name, pretrained=False, num_classes=10, **k)

        def mk():
            return R(n, 3, size, size)

        if how:
            m = how(m, mk, steps)
        return m, mk()

    return make


def pcv(name, size=64, n=8, how=None, **k) -> Any:
    """Make pytorchcv_octresnet10_ad2."""

    def make():
        from pytorchcv.model_provider import get_model

        m = get_model(name, pretrained=False, **k)

        def mk():
            return R(n, 3, size, size)

        if how:
            m = how(m, mk, 5)
        return m, mk()

    return make


def hf(kind, head="Model", how=None, n=8, **k) -> Any:
    """Make what several of the models take."""

    def make():
        import transformers

        b = {
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
        c = getattr(transformers, kind + "Config")(**(b | k))
        m = getattr(transformers, kind + head)(c)

        def mk():
            return {"input_ids": integers(3, 100, (n, 12))}

        if how:
            m = how(m, mk, 10)
        return m, mk()

    return make


def hubert() -> Any:
    """Make hf_Hubert_batch_norm."""
    from transformers import HubertConfig, HubertModel

    c = HubertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 4, 2),
        conv_kernel=(10, 4, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        conv_pos_batch_norm=True,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )

    def mk():
        return R(4, 4000)

    return passes(HubertModel(c), mk, 5), mk()


def groupvit() -> Any:
    """Make hf_GroupViT."""
    from transformers import (
        GroupViTConfig,
        GroupViTModel,
    )

    t = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "eos_token_id": 99,
        "bos_token_id": 98,
        "pad_token_id": 0,
    }
    v = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "depths": [2, 1, 1],
        "num_hidden_layers": 4,
        "num_group_tokens": [8, 4, 0],
        "num_output_groups": [8, 4, 4],
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 4,
    }
    m = GroupViTModel(
        GroupViTConfig(
            text_config=t,
            vision_config=v,
            projection_dim=16,
            projection_intermediate_dim=64,
        )
    )

    def mk():
        ids = integers(1, 98, (8, 10))
        ids[:, -1] = 99
        return {
            "input_ids": ids,
            "pixel_values": R(8, 3, 32, 32),
            "attention_mask": torch.ones(8, 10).long(),
        }

    return passes(m, mk, 5), mk()


def mimi() -> Any:
    """Make hf_Vits."""
    from transformers import VitsConfig, VitsModel

    c = VitsConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        window_size=4,
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=33,
        posterior_encoder_num_wavenet_layers=2,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        wavenet_kernel_size=3,
        duration_predictor_num_flows=2,
        duration_predictor_flow_bins=6,
        depth_separable_num_layers=2,
        depth_separable_channels=2,
    )
    return VitsModel(c).eval(), {"input_ids": integers(0, 40, (4, 10))}


def uvit() -> Any:
    """Make diffusers_UVit2D."""
    from diffusers import UVit2DModel

    m = UVit2DModel(
        hidden_size=32,
        cond_embed_dim=32,
        micro_cond_encode_dim=8,
        micro_cond_embed_dim=40,
        encoder_hidden_size=32,
        vocab_size=64,
        codebook_size=60,
        in_channels=32,
        block_out_channels=32,
        num_res_blocks=1,
        block_num_heads=4,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        sample_size=8,
    )
    return m, {
        "input_ids": integers(0, 60, (4, 8, 8)),
        "encoder_hidden_states": R(4, 6, 32),
        "pooled_text_emb": R(4, 32),
        "micro_conds": torch.rand(4, 5),
    }


def mochi() -> Any:
    """Make diffusers_Mochi."""
    from diffusers import MochiTransformer3DModel

    m = MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=4,
        out_channels=None,
        qk_norm="rms_norm",
        text_embed_dim=16,
        time_embed_dim=4,
        activation_fn="swiglu",
        max_sequence_length=16,
    )
    return m, {
        "hidden_states": R(4, 4, 2, 8, 8),
        "encoder_hidden_states": R(4, 16, 16),
        "timestep": integers(0, 1000, (4,)),
        "encoder_attention_mask": torch.ones(4, 16).bool(),
    }


def vq_spatial() -> Any:
    """Make diffusers_VQModel_spatial."""
    from diffusers import VQModel

    m = VQModel(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        num_vq_embeddings=32,
        norm_type="spatial",
    )

    def mk():
        return R(8, 3, 16, 16)

    return fit(m, mk, 5), mk()


def sana() -> Any:
    """Make diffusers_Sana."""
    from diffusers import SanaTransformer2DModel

    m = SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=16,
        sample_size=8,
        qk_norm="rms_norm_across_heads",
    )
    return m, {
        "hidden_states": R(4, 4, 8, 8),
        "encoder_hidden_states": R(4, 6, 16),
        "timestep": integers(0, 1000, (4,)).float(),
    }


def spade() -> Any:
    """Make monai_SPADEAutoencoderKL."""
    from monai.networks.nets import SPADEAutoencoderKL

    m = SPADEAutoencoderKL(
        spatial_dims=2,
        label_nc=3,
        in_channels=1,
        out_channels=1,
        num_res_blocks=(1, 1),
        channels=(16, 32),
        attention_levels=(False, True),
        latent_channels=4,
        norm_num_groups=8,
        spade_intermediate_channels=16,
    )
    s = (
        nn.functional.one_hot(integers(0, 3, (4, 16, 16)), 3)
        .permute(0, 3, 1, 2)
        .float()
    )
    return m, {"x": R(4, 1, 16, 16), "seg": s}


def vnet() -> Any:
    """Make monai_VNet."""
    from monai.networks.nets import VNet

    m = VNet(spatial_dims=2, in_channels=1, out_channels=2)

    def mk():
        return R(4, 1, 32, 32)

    return fit(m, mk, 5), mk()


def visnet() -> Any:
    """Make pyg_ViSNet."""
    from torch_geometric.nn.models import ViSNet
    from torch_geometric.nn.models import visnet as where

    def radius_graph(pos, r, batch, loop=False, max_num_neighbors=32, **k):
        near = (torch.cdist(pos, pos) < r) & (batch[:, None] == batch)
        if not loop:
            near = near & ~torch.eye(len(pos)).bool()
        return near.nonzero().T

    where.radius_graph = radius_graph
    m = ViSNet(
        hidden_channels=32,
        num_layers=2,
        num_heads=4,
        num_rbf=8,
        vecnorm_type="max_min",
        trainable_vecnorm=True,
        vertex=True,
    )
    return m, {
        "z": integers(1, 10, (48,)),
        "pos": R(48, 3) * 2,
        "batch": torch.arange(4).repeat_interleave(12),
    }


def deepgcn() -> Any:
    """Make pyg_DeepGCN_GENConv."""
    from torch_geometric.nn import DeepGCNLayer, GENConv, LayerNorm

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.enc = nn.Linear(8, 32)
            s.layers = nn.ModuleList(
                [
                    DeepGCNLayer(
                        GENConv(
                            32,
                            32,
                            aggr="softmax",
                            t=1.0,
                            learn_t=True,
                            num_layers=2,
                            norm="layer",
                            msg_norm=True,
                            learn_msg_scale=True,
                        ),
                        LayerNorm(32, mode="node"),
                        nn.ReLU(),
                        block="res+",
                        dropout=0.1,
                    )
                    for _ in range(3)
                ]
            )
            s.lin = nn.Linear(32, 4)

        def forward(s, x, edge_index):
            x = s.enc(x)
            x = s.layers[0].conv(x, edge_index)
            for one in s.layers[1:]:
                x = one(x, edge_index)
            return s.lin(s.layers[0].act(s.layers[0].norm(x)))

    e = integers(0, 60, (2, 240))

    def mk():
        return {"x": R(60, 8), "edge_index": e}

    return fit(Net(), mk, 10), mk()


def contextnet() -> Any:
    """Make speechbrain_ContextNet."""
    with standins("torchaudio"):
        from speechbrain.lobes.models.ContextNet import ContextNet
    m = ContextNet(
        input_shape=(4, 60, 20),
        out_channels=32,
        conv_channels=[16] * 3,
        kernel_size=3,
        strides=[1, 2, 1],
        num_blocks=3,
        num_layers=2,
        inner_dim=4,
        residuals=[False, True, True],
        alpha=1,
    )

    def mk():
        return R(4, 60, 20)

    return passes(m, mk, 5), mk()


def branchformer() -> Any:
    """Make speechbrain_Branchformer."""
    with standins("torchaudio"):
        from speechbrain.lobes.models.transformer.Branchformer import (
            BranchformerEncoder,
        )
        from speechbrain.nnet.attention import RelPosEncXL
    m = BranchformerEncoder(
        num_layers=2, nhead=4, kernel_size=7, d_model=32, csgu_linear_units=64
    )
    return m, {"src": R(4, 30, 32), "pos_embs": RelPosEncXL(32)(R(4, 30, 32))}


def smp_pan() -> Any:
    """Make smp_PSPNet_efficientnet."""
    from segmentation_models_pytorch import PSPNet

    m = PSPNet("efficientnet-b0", encoder_weights=None, classes=3)

    def mk():
        return R(8, 3, 64, 64)

    return passes(m, mk, 3).eval(), mk()


def renorm() -> Any:
    """Make torchrl_BatchRenorm."""
    from torchrl.modules import MLP, BatchRenorm1d

    m = MLP(
        12,
        4,
        num_cells=[64, 32],
        norm_class=BatchRenorm1d,
        norm_kwargs=[
            {"num_features": 64, "warmup_steps": 10},
            {"num_features": 32, "warmup_steps": 10},
        ],
    )

    def mk():
        return R(64, 12) * 3 + 1

    return fit(m, mk, 20), mk()


def deepinv_bf() -> Any:
    """Make deepinv_UNet_biasfree."""
    with standins("torchaudio", "h5py", "hdf5storage", "natsort"):
        from deepinv.models.unet import UNet
    m = UNet(3, 3, batch_norm="biasfree", scales=3)

    def mk():
        return torch.rand(4, 3, 32, 32)

    return fit(m, mk, 3), mk()


def e3nn_bn() -> Any:
    """Make e3nn_BatchNorm."""
    from e3nn import o3
    from e3nn.nn import BatchNorm, NormActivation

    ir = o3.Irreps("8x0e + 4x1o + 2x2e")
    m = nn.Sequential(
        o3.Linear("4x0e + 2x1o + 2x2e", ir),
        BatchNorm(ir),
        NormActivation(ir, torch.sigmoid),
        o3.Linear(ir, ir),
        BatchNorm(ir, instance=False, normalization="norm"),
        o3.Linear(ir, "3x0e"),
    )

    def mk():
        return R(64, 20) * 2

    return fit(m, mk, 20), mk()


def tabm_bn() -> Any:
    """Make tabm_ensemble_norms."""
    import tabm

    m = nn.Sequential(
        tabm.EnsembleView(k=4),
        tabm.LinearBatchEnsemble(12, 32, k=4, scaling_init="random-signs"),
        tabm.BatchNorm1dEnsemble(32, k=4),
        nn.ReLU(),
        tabm.LinearEnsemble(32, 16, k=4),
        tabm.LayerNormEnsemble((16,), k=4),
        nn.ReLU(),
        tabm.LinearEnsemble(16, 3, k=4),
    )

    def mk():
        return R(64, 12) * 3 + 1

    return fit(m, mk, 20), mk()


def complex_vit() -> Any:
    """Make complextorch_ViT."""
    from complextorch.models import ViT

    m = ViT(
        image_size=16,
        patch_size=4,
        in_channels=1,
        num_classes=5,
        dim=32,
        depth=2,
        heads=4,
        mlp_dim=64,
    )
    return m, R(8, 1, 16, 16, dtype=torch.cfloat)


def glow() -> Any:
    """Make normflows_Glow."""
    import normflows as nf

    flows = [
        nf.flows.GlowBlock(4, 16, split_mode="channel", scale=True, net_actnorm=True)
        for _ in range(3)
    ]
    m = nf.NormalizingFlow(nf.distributions.DiagGaussian((4, 8, 8)), flows)

    def mk():
        return R(16, 4, 8, 8) * 2 + 1

    return passes(m, mk, 2), mk()


def tidnet() -> Any:
    """Make braindecode_TIDNet."""
    with standins(
        "h5py",
        "moabb",
        "docstring_inheritance_x",
        "torchaudio",
        "linear_attention_transformer",
        "eeglabio",
        "rotary_embedding_torch_x",
        "wfdb",
    ):
        from braindecode.models import TIDNet
    m = TIDNet(n_chans=8, n_outputs=3, n_times=256)

    def mk():
        return R(8, 8, 256) * 5

    return fit(m, mk, 5), mk()


def pbt() -> Any:
    """Make braindecode_PBT."""
    with standins(
        "h5py",
        "moabb",
        "torchaudio",
        "linear_attention_transformer",
        "eeglabio",
        "wfdb",
    ):
        from braindecode.models import PBT
    return PBT(
        n_chans=4,
        n_outputs=3,
        n_times=200,
        d_input=20,
        embed_dim=32,
        num_layers=2,
        num_heads=4,
    ), R(8, 4, 200)


def autoformer() -> Any:
    """Make hf_Autoformer."""
    from transformers import AutoformerConfig, AutoformerForPrediction

    c = AutoformerConfig(
        prediction_length=8,
        context_length=16,
        lags_sequence=[1, 2, 3],
        num_time_features=1,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        label_length=8,
        moving_average=5,
    )
    m = AutoformerForPrediction(c)

    def mk():
        return {
            "past_values": R(16, 19).cumsum(1),
            "past_time_features": R(16, 19, 1),
            "past_observed_mask": torch.ones(16, 19),
            "future_values": R(16, 8),
            "future_time_features": R(16, 8, 1),
        }

    return fit(m, mk, 10), mk()


def videomae() -> Any:
    """Make hf_VideoMAE."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    c = VideoMAEConfig(
        image_size=32,
        patch_size=8,
        num_frames=4,
        tubelet_size=2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=5,
    )
    return VideoMAEForVideoClassification(c), R(8, 4, 3, 32, 32)


def escnn_bn() -> Any:
    """Make escnn_InnerBatchNorm."""
    with standins("lie_learn", "pymanopt", "autograd", "py3nj"):
        from escnn import gspaces
        from escnn import nn as enn
    g = gspaces.rot2dOnR2(4)
    a, b = (
        enn.FieldType(g, 3 * [g.trivial_repr]),
        enn.FieldType(g, 6 * [g.regular_repr]),
    )

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.body = enn.SequentialModule(
                enn.R2Conv(a, b, 3, padding=1),
                enn.InnerBatchNorm(b),
                enn.ReLU(b),
                enn.R2Conv(b, b, 3, padding=1),
                enn.InnerBatchNorm(b),
                enn.ReLU(b),
            )
            s.pool = enn.GroupPooling(b)
            s.lin = nn.Linear(6, 5)

        def forward(s, x):
            return s.lin(s.pool(s.body(enn.GeometricTensor(x, a))).tensor.mean((2, 3)))

    def mk():
        return R(8, 3, 16, 16)

    return fit(Net(), mk, 5), mk()


def dgcnn() -> Any:
    """Make torch_pointcloud_DGCNN."""
    with standins("h5py", "laspy", "plyfile", "open3d"):
        from torch_pointcloud.models.dgcnn import DGCNNClassification
    from torch_geometric.nn import pool

    def knn_graph(x, k, batch=None, loop=False, flow="source_to_target", *a, **kw):
        d = torch.cdist(x.detach(), x.detach())
        if batch is not None:
            d = d.masked_fill(batch[:, None] != batch, float("inf"))
        if not loop:
            d = d + torch.diag(torch.full((len(x),), float("inf")))
        near = d.topk(k, largest=False).indices
        return torch.stack(
            [near.reshape(-1), torch.arange(len(x)).repeat_interleave(k)]
        )

    pool.knn_graph = knn_graph
    m = DGCNNClassification(3, 10, **DG)

    def mk():
        return {
            "x": R(512, 3),
            "pos": torch.rand(512, 3),
            "batch": torch.arange(8).repeat_interleave(64),
        }

    return fit(m, mk, 3), mk()


DG = {
    "channels": (16, 32),
    "proj_channels": 64,
    "num_neighbors": 8,
    "head_channels": (32,),
    "dropout": 0.2,
}


MODELS = {
    "careamics_UNet_n2v2": careamics_unet,
    "pythae_VAE_celeba": pythae_vae,
    "pyannote_SincNet": pyannote_xvector,
    "pfrl_MLPBN": pfrl_mlpbn,
    "pfrl_EmpiricalNormalization": pfrl_empirical,
    "pykeen_ConvE": pykeen_conve,
    "darts_TSMixer": darts_tsmixer,
    "darts_Transformer": darts_transformer,
    "resnest": resnest_,
    "geffnet_cc_b0": geffnet_cc,
    "uniformer": uniformer,
    "tab_FTTransformer": ft_transformer,
    "alphafold2": alphafold2,
    "anomalib_Ganomaly": ganomaly,
    "anomalib_FastFlow": fastflow,
    "chgnet_GatedMLP": chgnet_mlp,
    "cebra_Offset10": cebra_offset10,
    "pytorch3dunet_ResidualSE": unet3d_se,
    "unimol_encoder": unimol,
    "audio_diffusion_UNetV0": audio_diffusion,
    "gmlp": gmlp,
    "iunet": iunet,
    "scvi_VAE": scvi_vae,
    "aviary_CGCNN": aviary_cgcnn,
    "gvp_network": gvp_net,
    "timm_mambaout_femto": timm_("mambaout_femto"),
    "timm_starnet_s1": timm_("starnet_s1", how=fit),
    "timm_efficientvim_m1": timm_("efficientvim_m1", how=passes),
    "pytorchcv_octresnet10_ad2": pcv("octresnet10_ad2", 224, 4, how=passes),
    "hf_Qwen3Next": hf(
        "Qwen3Next",
        "ForCausalLM",
        num_key_value_heads=2,
        head_dim=16,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        decoder_sparse_step=1,
        num_hidden_layers=4,
        how=fit,
    ),
    "hf_DeepseekV3": hf(
        "DeepseekV3",
        "ForCausalLM",
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
    "hf_DiffLlama": hf("DiffLlama", "ForCausalLM", num_key_value_heads=2, how=fit),
    "hf_IBert": hf("IBert", max_position_embeddings=40),
    "hf_FalconMamba": hf("FalconMamba", num_hidden_layers=2, state_size=8),
    "hf_Hubert_batch_norm": hubert,
    "hf_GroupViT": groupvit,
    "hf_Vits": mimi,
    "diffusers_UVit2D": uvit,
    "diffusers_Mochi": mochi,
    "diffusers_VQModel_spatial": vq_spatial,
    "diffusers_Sana": sana,
    "monai_SPADEAutoencoderKL": spade,
    "monai_VNet": vnet,
    "pyg_ViSNet": visnet,
    "pyg_DeepGCN_GENConv": deepgcn,
    "speechbrain_ContextNet": contextnet,
    "speechbrain_Branchformer": branchformer,
    "smp_PSPNet_efficientnet": smp_pan,
    "torchrl_BatchRenorm": renorm,
    "deepinv_UNet_biasfree": deepinv_bf,
    "e3nn_BatchNorm": e3nn_bn,
    "tabm_ensemble_norms": tabm_bn,
    "complextorch_ViT": complex_vit,
    "normflows_Glow": glow,
    "braindecode_TIDNet": tidnet,
    "braindecode_PBT": pbt,
    "hf_Autoformer": autoformer,
    "hf_VideoMAE": videomae,
    "escnn_InnerBatchNorm": escnn_bn,
    "hf_Bamba": hf(
        "Bamba",
        "ForCausalLM",
        num_key_value_heads=2,
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=1,
        attn_layer_indices=[1],
        how=fit,
    ),
    "torch_pointcloud_DGCNN": dgcnn,
}


if __name__ == "__main__":
    compare(__doc__, MODELS, PACKAGES)
