# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configuration of decoders of many families, and their published sizes.

Families: Llama 3 (Grattafiori et al. 2024), Mistral (Jiang et al. 2023), Mixtral (Jiang et al.
2024), Qwen 2.5 and Qwen 3 (Yang et al. 2024, 2025), Gemma 2 and 3 (Gemma Team 2024, 2025), Phi 3
(Abdin et al. 2024), OLMo 2 (OLMo et al. 2024), Falcon (Almazrouei et al. 2023), DeepSeek-V2 and V3
(DeepSeek-AI 2024), GPT-OSS (OpenAI 2025). The sizes are those of the ``config.json`` that each of
them publishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tvm_distir.support import nearest

from .configs import Config, Fault, indivisible

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
ROTARY_SCALINGS = ("none", "linear", "llama3", "yarn")
NORMS = ("rms", "layer", "plain")
ROUTINGS = ("softmax", "softmax_all", "sigmoid")


@dataclass(frozen=True)
class DecoderConfig(Config):
    """Configuration of a decoder of today's families.

    Attributes
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : int
        Sizes; ``head_dim`` 0 means ``hidden / heads``. ``kv_heads`` divides ``heads``.
    batch, seq : int
        Samples and tokens per sample of the data input ``input_ids``.
    dtype : str
        The dtype of weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    eps : float
        Epsilon of RMSNorm.
    activation : str
        The activation of the gate: ``silu``, ``gelu`` or ``gelu_tanh``.
    qkv_bias, o_bias : int
        1: the projections of attention have biases.
    qk_norm, joint_qk_norm : int
        1: queries and keys are normalized, per head or over all heads.
    tied : int
        1: the head of the model is the token table.
    norm : str
        ``rms``, ``layer`` (with a bias), or ``plain``: a layer norm without weights.
    gated : int
        0: the feed-forward block has no gate.
    parallel, parallel_norms : int
        1: attention and the feed-forward block read the same values and their results are added;
        and how many norms they have.
    norm_offset : int
        1: norms multiply by ``1 + weight``.
    pre_norms : int
        1: attention and the feed-forward block read normalized values.
    post_norms : int
        1: the results of attention and of the feed-forward block are normalized too.
    embed_scale : int
        1: embeddings are multiplied by the square root of ``hidden``.
    window, window_period : int
        Tokens that a sliding window sees, 0 for all; every ``window_period``-th layer sees all
        tokens (0: none does).
    score_cap, logit_cap : float
        Caps of scores and of logits, ``cap tanh(x / cap)``; 0: none.
    query_width : float
        The scale of scores is its inverse square root; 0: the width of a head.
    sinks : int
        1: each head has a learned logit that takes part in the softmax and has no value.
    theta, local_theta : float
        Base of the rotary embedding; ``local_theta`` of layers with a window (0: the same).
    rotary_share : float
        Share of the width of a head that is rotated.
    rotary_interleaved : int
        1: pairs of the rotary embedding are neighbors, not halves.
    rotary_scaling : str
        How positions are scaled: ``none``, ``linear``, ``llama3`` or ``yarn``.
    rotary_factor, rotary_positions : float, int
        The factor of the scaling, and the positions of the original model.
    rotary_low, rotary_high : float
        Bounds of the scaled frequencies: of ``llama3`` the factors of low and high frequencies, of
        ``yarn`` the rotations ``beta_slow`` and ``beta_fast``.
    rotary_mscale, rotary_mscale_all : float
        The scale of attention by ``yarn``; 0: the default.
    rotary_rounded : int
        1: ``yarn`` rounds the dims between which it interpolates.
    q_rank, kv_rank, nope_dim, rope_dim, v_dim : int
        Multi-head latent attention where ``kv_rank`` is not 0: the ranks of queries (0: full) and
        of keys and values, and widths of a head without and with rotation, and of values.
    experts, top_k, expert_ffn, shared_ffn : int
        Experts of a layer (0: none), how many of them work on a token, the width of an expert, and
        of the expert that works on all tokens (0: none).
    dense_layers : int
        Layers, the first ones, without experts.
    routing : str
        The gates: ``softmax`` of the selected logits, ``softmax_all``: probabilities among all
        experts, or ``sigmoid`` with a correction of the selection (DeepSeek-V3).
    expert_groups, top_groups : int
        Groups of experts, and how many of them a token may use.
    routing_scale : float
        The factor of the gates.
    expert_bias : int
        1: the router and the experts have biases.
    swiglu_limit : float
        Bound of gates and values in GPT-OSS's form of the gated activation; 0: the usual form.
    capacity_factor : float
        The number of slots of an expert for a sample, relative to an even spread of its tokens. 1:
        the rows that a step without dropped tokens computes at a balanced load; 0: as many as the
        sample has tokens, so that none is dropped whatever the load.
    """

    FLAGS = frozenset(
        {
            *("nested", "qkv_bias", "o_bias", "qk_norm", "tied", "norm_offset", "post_norms"),
            *("embed_scale", "sinks", "rotary_interleaved", "rotary_rounded", "expert_bias"),
            *("pre_norms", "joint_qk_norm", "gated", "parallel"),
        }
    )
    MAY_BE_ZERO = frozenset(
        {
            *("head_dim", "window", "window_period", "score_cap", "logit_cap", "query_width"),
            *("local_theta", "rotary_mscale", "rotary_mscale_all", "q_rank", "kv_rank"),
            *("nope_dim", "rope_dim", "v_dim", "experts", "expert_ffn", "shared_ffn"),
            *("dense_layers", "swiglu_limit", "capacity_factor"),
        }
    )

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 0
    ffn: int = 14336
    vocab: int = 128256
    batch: int = 16
    seq: int = 4096
    dtype: str = "bfloat16"
    nested: int = 1
    eps: float = 1e-5
    activation: str = "silu"
    qkv_bias: int = 0
    o_bias: int = 0
    qk_norm: int = 0
    tied: int = 0
    norm_offset: int = 0
    post_norms: int = 0
    embed_scale: int = 0
    window: int = 0
    window_period: int = 0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    query_width: float = 0.0
    sinks: int = 0
    theta: float = 500000.0
    local_theta: float = 0.0
    rotary_share: float = 1.0
    rotary_interleaved: int = 0
    rotary_scaling: str = "none"
    rotary_factor: float = 1.0
    rotary_positions: int = 8192
    rotary_low: float = 1.0
    rotary_high: float = 4.0
    rotary_mscale: float = 0.0
    rotary_mscale_all: float = 0.0
    rotary_rounded: int = 1
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    experts: int = 0
    top_k: int = 1
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    routing: str = "softmax"
    expert_groups: int = 1
    top_groups: int = 1
    routing_scale: float = 1.0
    expert_bias: int = 0
    swiglu_limit: float = 0.0
    capacity_factor: float = 1.0
    norm: str = "rms"
    pre_norms: int = 1
    joint_qk_norm: int = 0
    gated: int = 1
    parallel: int = 0
    parallel_norms: int = 1

    @property
    def width(self) -> int:
        """Return the width of queries and keys of a head."""
        return self.nope_dim + self.rope_dim if self.kv_rank else self.plain_width

    @property
    def plain_width(self) -> int:
        """Return the width of a head of attention without latent projections."""
        return self.head_dim or self.hidden // self.heads

    @property
    def rotated(self) -> int:
        """Return the width of the part of a head that is rotated."""
        return self.rope_dim if self.kv_rank else int(self.plain_width * self.rotary_share)

    @property
    def scale(self) -> float:
        """Return the factor of scores.

        With ``yarn`` and latent attention it contains the square of yarn's scale, as DeepSeek-V2's
        published code has it.
        """
        scale = 1.0 / math.sqrt(self.query_width or self.width)
        if self.kv_rank and self.rotary_scaling == "yarn" and self.rotary_mscale_all:
            return scale * yarn_scale(self.rotary_factor, self.rotary_mscale_all) ** 2
        return scale

    @property
    def capacity(self) -> int:
        """Return the slots of an expert for a sample."""
        if not self.capacity_factor:
            return self.seq
        even = self.seq * self.top_k * self.capacity_factor / self.experts
        return min(self.seq, max(1, math.ceil(even)))

    def has_window(self, layer: int) -> bool:
        """Return whether the attention of a layer has a window."""
        period = self.window_period
        return bool(self.window) and not (period and (layer + 1) % period == 0)

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return bool(self.experts) and layer >= self.dense_layers

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including sizes that do not divide and words that are unknown."""
        yield from super().faults()
        for name, words in (
            ("activation", ACTIVATIONS),
            ("rotary_scaling", ROTARY_SCALINGS),
            ("routing", ROUTINGS),
            ("norm", NORMS),
        ):
            if (word := getattr(self, name)) not in words:
                yield f'unknown {name} "{word}"', nearest(word, words)
        if not self.head_dim and not self.kv_rank:
            yield from indivisible("hidden", self.hidden, "heads", self.heads)
        yield from indivisible("heads", self.heads, "kv_heads", self.kv_heads)
        if self.kv_rank and not (self.nope_dim and self.rope_dim and self.v_dim):
            yield "kv_rank without widths of heads", "Give nope_dim, rope_dim and v_dim."
        if self.rotated % 2:
            yield (
                f"the rotated width {self.rotated} is odd, which rotary embedding cannot use",
                "Choose head_dim and rotary_share with an even product.",
            )
        if not self.pre_norms and not self.post_norms:
            yield "pre_norms=0 without post_norms", "Add post_norms=1."
        if self.parallel and (self.post_norms or self.parallel_norms > 2):
            yield "parallel blocks with norms of results", "Remove post_norms; give 1 or 2 norms."
        if self.experts:
            yield from self._expert_faults()

    def _expert_faults(self) -> Iterator[Fault]:
        if self.top_k > self.experts:
            yield (
                f"top_k={self.top_k} exceeds experts={self.experts}",
                f"Add experts={self.top_k}, or choose a smaller top_k.",
            )
        if not self.expert_ffn:
            yield "experts without expert_ffn", "Give the width of an expert."
        yield from indivisible("experts", self.experts, "expert_groups", self.expert_groups)
        if self.top_groups > self.expert_groups:
            yield (
                f"top_groups={self.top_groups} exceeds expert_groups={self.expert_groups}",
                "Choose a smaller top_groups.",
            )


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Return the scale of attention of YaRN (Peng et al. 2023, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_TINY = DecoderConfig(
    layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=512, batch=4, seq=16, dtype="float32",
    theta=10000.0,
)  # fmt: skip
_LLAMA3 = DecoderConfig(rotary_scaling="llama3", rotary_factor=8.0)
_LLAMA32 = replace(
    _LLAMA3, layers=28, hidden=3072, heads=24, head_dim=128, ffn=8192, tied=1, rotary_factor=32.0
)
_MISTRAL = DecoderConfig(vocab=32768, theta=1e6)
_MIXTRAL = replace(_MISTRAL, vocab=32000, experts=8, top_k=2, expert_ffn=14336)
_QWEN = DecoderConfig(vocab=151936, theta=1e6, eps=1e-6, seq=4096)
_QWEN2 = replace(_QWEN, qkv_bias=1)
_QWEN3 = replace(_QWEN, qk_norm=1, head_dim=128)
_GEMMA2 = DecoderConfig(
    layers=42, hidden=3584, heads=16, kv_heads=8, head_dim=256, ffn=14336, vocab=256000, eps=1e-6,
    theta=10000.0, activation="gelu_tanh", tied=1, norm_offset=1, post_norms=1, embed_scale=1,
    window=4096, window_period=2, score_cap=50.0, logit_cap=30.0, query_width=256.0,
)  # fmt: skip
_GEMMA3 = replace(
    _GEMMA2, layers=62, hidden=5376, heads=32, kv_heads=16, head_dim=128, ffn=21504, vocab=262208,
    theta=1e6, local_theta=10000.0, rotary_scaling="linear", rotary_factor=8.0, qk_norm=1,
    window=1024, window_period=6, score_cap=0.0, logit_cap=0.0, query_width=168.0,
)  # fmt: skip
_DEEPSEEK_V2_LITE = DecoderConfig(
    layers=27, hidden=2048, heads=16, kv_heads=16, ffn=10944, vocab=102400, eps=1e-6,
    theta=10000.0, rotary_interleaved=1, rotary_scaling="yarn", rotary_factor=40.0,
    rotary_positions=4096, rotary_low=1.0, rotary_high=32.0, rotary_mscale=0.707,
    rotary_mscale_all=0.707, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, experts=64,
    top_k=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1, routing="softmax_all",
)  # fmt: skip
_DEEPSEEK_V2 = replace(
    _DEEPSEEK_V2_LITE, layers=60, hidden=5120, heads=128, kv_heads=128, ffn=12288, q_rank=1536,
    experts=160, expert_ffn=1536, shared_ffn=3072, expert_groups=8, top_groups=3,
    routing_scale=16.0,
)  # fmt: skip
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2_LITE, layers=61, hidden=7168, heads=128, kv_heads=128, ffn=18432, vocab=129280,
    rotary_mscale=1.0, rotary_mscale_all=1.0, q_rank=1536, experts=256, top_k=8, expert_ffn=2048,
    shared_ffn=2048, dense_layers=3, routing="sigmoid", expert_groups=8, top_groups=4,
    routing_scale=2.5,
)  # fmt: skip
_GPT_OSS = DecoderConfig(
    layers=24, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocab=201088,
    theta=150000.0, rotary_scaling="yarn", rotary_factor=32.0, rotary_positions=4096,
    rotary_low=1.0, rotary_high=32.0, rotary_rounded=0, qkv_bias=1, o_bias=1, sinks=1, window=128,
    window_period=2, experts=32, top_k=4, expert_ffn=2880, expert_bias=1, swiglu_limit=7.0,
)  # fmt: skip

_OLMO2 = DecoderConfig(
    kv_heads=32, ffn=11008, vocab=100352, eps=1e-6, pre_norms=0, post_norms=1, joint_qk_norm=1
)
_FALCON = DecoderConfig(
    layers=32, hidden=4544, heads=71, kv_heads=1, ffn=18176, vocab=65024, seq=2048, theta=10000.0,
    activation="gelu", tied=1, norm="layer", gated=0, parallel=1,
)  # fmt: skip

_TINY_EXPERTS = replace(_TINY, experts=4, top_k=2, expert_ffn=48)

FAMILIES: Mapping[str, Mapping[str, DecoderConfig]] = {
    "llama3": {
        "3.1-8b": _LLAMA3,
        "3-8b": DecoderConfig(),
        "3-70b": DecoderConfig(layers=80, hidden=8192, heads=64, ffn=28672),
        "3.1-70b": replace(_LLAMA3, layers=80, hidden=8192, heads=64, ffn=28672),
        "3.1-405b": replace(_LLAMA3, layers=126, hidden=16384, heads=128, ffn=53248),
        "3.2-1b": replace(_LLAMA32, layers=16, hidden=2048, heads=32, head_dim=64),
        "3.2-3b": _LLAMA32,
        "tiny": replace(_TINY, rotary_scaling="llama3", rotary_factor=8.0, rotary_positions=8),
    },
    "mistral": {
        "7b": _MISTRAL,
        "nemo-12b": replace(_MISTRAL, layers=40, hidden=5120, head_dim=128, vocab=131072),
        "tiny": replace(_TINY, window=4),
    },
    "mixtral": {
        "8x7b": _MIXTRAL,
        "8x22b": replace(
            _MIXTRAL, layers=56, hidden=6144, heads=48, expert_ffn=16384, vocab=32768
        ),
        "tiny": _TINY_EXPERTS,
    },
    "qwen2": {
        "7b": replace(
            _QWEN2, layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064
        ),
        "32b": replace(_QWEN2, layers=64, hidden=5120, heads=40, ffn=27648, vocab=152064),
        "72b": replace(_QWEN2, layers=80, hidden=8192, heads=64, ffn=29568, vocab=152064),
        "tiny": replace(_TINY, qkv_bias=1),
    },
    "qwen3": {
        "8b": replace(_QWEN3, layers=36, hidden=4096, ffn=12288),
        "32b": replace(_QWEN3, layers=64, hidden=5120, heads=64, ffn=25600),
        "30b-a3b": replace(
            _QWEN3, layers=48, hidden=2048, kv_heads=4, ffn=6144, experts=128, top_k=8,
            expert_ffn=768,
        ),
        "235b-a22b": replace(
            _QWEN3, layers=94, hidden=4096, heads=64, kv_heads=4, ffn=12288, experts=128, top_k=8,
            expert_ffn=1536,
        ),
        "tiny": replace(_TINY, qk_norm=1, head_dim=16),
    },
    "gemma": {
        "2-9b": _GEMMA2,
        "2-27b": replace(
            _GEMMA2, layers=46, hidden=4608, heads=32, kv_heads=16, head_dim=128, ffn=36864,
            query_width=144.0,
        ),
        "3-27b": _GEMMA3,
        "tiny": replace(
            _TINY, head_dim=16, tied=1, norm_offset=1, post_norms=1, embed_scale=1, window=4,
            window_period=2, score_cap=50.0, logit_cap=30.0, activation="gelu_tanh",
        ),
    },
    "olmo": {
        "2-7b": _OLMO2,
        "2-13b": replace(_OLMO2, layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824),
        "2-32b": replace(_OLMO2, layers=64, hidden=5120, heads=40, kv_heads=8, ffn=27648),
        "tiny": replace(_TINY, pre_norms=0, post_norms=1, joint_qk_norm=1),
    },
    "falcon": {
        "7b": _FALCON,
        "40b": replace(
            _FALCON, layers=60, hidden=8192, heads=128, kv_heads=8, ffn=32768, parallel_norms=2
        ),
        "tiny": replace(
            _TINY, kv_heads=1, activation="gelu", tied=1, norm="layer", gated=0, parallel=1
        ),
    },
    "phi": {
        "3-mini": DecoderConfig(
            hidden=3072, kv_heads=32, ffn=8192, vocab=32064, theta=10000.0, window=2047
        ),
        "4": DecoderConfig(
            layers=40, hidden=5120, heads=40, kv_heads=10, ffn=17920, vocab=100352, theta=250000.0
        ),
        "tiny": replace(_TINY, rotary_share=0.5),
    },
    "deepseek": {
        "v2-lite": _DEEPSEEK_V2_LITE,
        "v2": _DEEPSEEK_V2,
        "v3": _DEEPSEEK_V3,
        "tiny": replace(
            _TINY_EXPERTS, layers=3, kv_heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4,
            v_dim=8, shared_ffn=48, dense_layers=1, routing="sigmoid", expert_groups=2,
            top_groups=1, routing_scale=2.5, rotary_interleaved=1,
        ),
    },
    "gpt_oss": {
        "20b": _GPT_OSS,
        "120b": replace(_GPT_OSS, layers=36, experts=128),
        "tiny": replace(
            _TINY_EXPERTS, qkv_bias=1, o_bias=1, sinks=1, window=4, window_period=2, expert_bias=1,
            swiglu_limit=7.0,
        ),
    },
}  # fmt: skip
"""Published sizes by family, the default size first."""
