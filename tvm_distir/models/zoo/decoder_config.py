# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configuration of decoders of many families."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from .configs import Fault, indivisible
from .decoder_experts import ExpertSizes


@dataclass(frozen=True)
class DecoderConfig(ExpertSizes):
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
    positions : int
        Rows of a learned position table, which ``seq`` cannot exceed; the weights then have the
        names of GPT-2. 0: positions are rotary.
    dropout : float
        Share of elements that training drops: of embeddings, weights of attention, and results of
        blocks.
    activation : str
        The activation of the gate: ``silu``, ``gelu`` or ``gelu_tanh``.
    qkv_bias, o_bias, ffn_bias : int
        1: the projections of attention, and of the feed-forward block, have biases.
    fused_qkv : int
        1: a joint projection to query, key and value, by head; with learned positions.
    attention : str
        ``softmax``: products and a softmax; ``flash``: a single op, with ``fused_qkv`` and without
        dropout.
    qk_norm, joint_qk_norm : int
        1: queries and keys are normalized, per head or over all heads.
    tied : int
        1: the head of the model is the token table.
    norm : str
        ``rms``, ``layer`` (with a bias), ``centered`` (without), or ``plain``: without weights.
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
    embed_factor, residual_factor, logit_factor : float
        Factors of embeddings, of what a block adds, and of logits.
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
    experts, top_k, expert_ffn, shared_ffn, shared_gate : int
        Experts of a layer (0: none), how many of them work on a token, the width of an expert (0:
        ``ffn``), and of the expert that works on all tokens (0: none), by a gate of the token (1).
    dense_layers : int
        Layers, the first ones, without experts.
    routing : str
        The gates: ``softmax`` of the selected logits, ``softmax_all``: probabilities among all
        experts, or ``sigmoid`` with a correction of the selection (DeepSeek-V3).
    dispatch : str
        How tokens get to experts: ``permutation`` reads their rows, as a serving step always does;
        ``one_hot`` multiplies them by tables.
    expert_groups, top_groups : int
        Groups of experts, and how many of them a token may use.
    routing_scale : float
        The factor of the gates.
    expert_bias : int
        1: the router and the experts have biases.
    swiglu_limit : float
        Bound of gates and values in GPT-OSS's form of the gated activation; 0: the usual form.
    capacity_factor : float
        The number of slots of an expert for a group, relative to an even spread of its tokens. 1:
        the rows that a step without dropped tokens computes at a balanced load; 0: as many as the
        group has tokens, so that none is dropped whatever the load.
    token_groups : int
        Groups of consecutive tokens of a sample, each with slots of its own, so that devices that
        shard the sequence send their tokens to experts by themselves.
    """

    FLAGS = frozenset(
        "nested qkv_bias o_bias qk_norm tied norm_offset shared_gate embed_scale sinks "
        "rotary_interleaved rotary_rounded post_norms pre_norms joint_qk_norm gated parallel "
        "ffn_bias fused_qkv expert_bias".split()
    )
    MAY_BE_ZERO = frozenset(
        "head_dim window window_period score_cap logit_cap query_width local_theta "
        "rotary_mscale rotary_mscale_all q_rank kv_rank nope_dim rope_dim v_dim experts "
        "expert_ffn shared_ffn dense_layers swiglu_limit capacity_factor positions dropout".split()
    )

    WORDS: ClassVar = {
        **ExpertSizes.WORDS,
        "attention": ("softmax", "flash"),
        "activation": ("silu", "gelu", "gelu_tanh"),
        "rotary_scaling": ("none", "linear", "llama3", "yarn"),
        "norm": ("rms", "layer", "centered", "plain"),
        "routing": ("softmax", "softmax_all", "sigmoid"),
        "dispatch": ("permutation", "one_hot"),
    }

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 0
    vocab: int = 128256
    batch: int = 16
    dtype: str = "bfloat16"
    nested: int = 1
    eps: float = 1e-5
    positions: int = 0
    dropout: float = 0.0
    activation: str = "silu"
    qkv_bias: int = 0
    o_bias: int = 0
    ffn_bias: int = 0
    fused_qkv: int = 0
    attention: str = "softmax"
    qk_norm: int = 0
    tied: int = 0
    norm_offset: int = 0
    post_norms: int = 0
    embed_scale: int = 0
    embed_factor: float = 1.0
    residual_factor: float = 1.0
    logit_factor: float = 1.0
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
    shared_ffn: int = 0
    shared_gate: int = 0
    routing: str = "softmax"
    dispatch: str = "permutation"
    routing_scale: float = 1.0
    expert_bias: int = 0
    swiglu_limit: float = 0.0
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

    def has_window(self, layer: int) -> bool:
        """Return whether the attention of a layer has a window."""
        period = self.window_period
        return bool(self.window) and not (period and (layer + 1) % period == 0)

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including sizes that do not divide."""
        yield from super().faults()
        if not self.head_dim and not self.kv_rank:
            yield from indivisible("hidden", self.hidden, "heads", self.heads)
        yield from indivisible("heads", self.heads, "kv_heads", self.kv_heads)
        if self.kv_rank and not (self.nope_dim and self.rope_dim and self.v_dim):
            yield "kv_rank without widths of heads", "Give nope_dim, rope_dim and v_dim."
        if not self.positions and self.rotated % 2:
            yield (
                f"the rotated width {self.rotated} is odd, which rotary embedding cannot use",
                "Choose head_dim and rotary_share with an even product.",
            )
        if not self.pre_norms and not self.post_norms:
            yield "pre_norms=0 without post_norms", "Add post_norms=1."
        if self.parallel and (self.post_norms or self.parallel_norms > 2):
            yield "parallel blocks with norms of results", "Remove post_norms; give 1 or 2 norms."
        yield from self._gpt_faults()
        if self.experts:
            yield from self.expert_faults()

    def _gpt_faults(self) -> Iterator[Fault]:
        if self.dropout >= 1:
            yield f"dropout={self.dropout}", "Give a fraction below 1."
        if self.attention == "flash":
            if not self.fused_qkv or self.dropout:
                yield "attention=flash", "Add fused_qkv=1, and remove dropout."
            if self.window or self.sinks or self.score_cap:
                yield "attention=flash with a window, sinks or a cap", "Give attention=softmax."
        if self.fused_qkv and (not self.positions or self.heads != self.kv_heads):
            yield "fused_qkv=1 with rotary or grouped attention", "Remove fused_qkv."
        if self.positions and (self.kv_rank or self.qk_norm or self.joint_qk_norm):
            yield "positions with latent attention or norms of queries", "Give positions=0."
        if 0 < self.positions < self.seq:
            yield f"seq={self.seq} exceeds positions={self.positions}", f"Add positions={self.seq}."


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Return the scale of attention of YaRN (Peng et al. 2023, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
