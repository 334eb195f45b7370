# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read single keys of a ``config.json``, and refuse those that are unknown or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_distir.support import ModelError

NOT_IN_GRAPH = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _name_or_path add_cross_attention
    architectures attention_dropout attn_implementation auto_map aux_loss_alpha bad_words_ids
    bos_token_id cache_implementation chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id embd_pdrop eos_token_id ep_size experts_per_token
    experts_implementation finetuning_task forced_bos_token_id forced_eos_token_id id2label
    initial_context_length initializer_range is_decoder is_encoder_decoder label2id
    max_position_embeddings max_window_layers model_type num_nextn_predict_layers
    original_max_position_embeddings output_attentions output_hidden_states output_router_logits
    pad_token_id prefix pretraining_tp problem_type quantization_config
    compression_config resid_pdrop
    return_dict router_aux_loss_coef router_jitter_noise sep_token_id seq_aux task_specific_params
    tokenizer_class torch_dtype dtype transformers_version unsloth_fixed use_cache
    use_bidirectional_attention _sliding_window_pattern attention_probs_dropout_prob
    classifier_dropout dropout_rate encoder_stride hidden_dropout hidden_dropout_prob
    initializer_factor pooler_act pooler_output_size activation_dropout apply_spec_augment
    begin_suppress_tokens classifier_proj_size decoder_layerdrop dropout encoder_layerdrop init_std
    mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length
    mask_time_min_masks mask_time_prob median_filter_width suppress_tokens
    max_length n_positions output_past gradient_checkpointing
    """.split()
)
"""Keys that do not change the graph of a forward pass: what initializes, trains or decodes.
Positions bound the sequence; layers of multi-token prediction are read by training code only. What
quantizes is stated by :mod:`.quantized_config`."""


class ConfigKeys:
    """Reader of the keys of a configuration, which says which keys nothing has read."""

    def __init__(self, data: Mapping[str, Any], location: str) -> None:
        self.data, self.location = data, location
        self.unread = {key for key in data if key not in NOT_IN_GRAPH}

    @property
    def dtype(self) -> str:
        """Return the name of the dtype of weights and activations."""
        dtype = self.data.get("dtype") or self.data.get("torch_dtype") or "float32"
        return str(dtype).removeprefix("torch.")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; the default where it is missing or null."""
        self.unread.discard(key)
        value = self.data.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> Any:
        """Return a number, which must be there without a default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{key} is missing" if value is None else f"{key} is not a number: {value!r}"
            raise self.fault(problem, "Give the config.json that the model publishes.")
        return value

    def flag(self, key: str, default: bool = False) -> int:
        """Return 1 for true."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} is not true or false: {value!r}", "Correct it.")
        return int(value)

    def require(self, key: str, *values: Any) -> None:
        """Refuse any other value of a key that changes the graph."""
        value = self.get(key, values[0])
        if value not in values:
            known = " or ".join(map(repr, values))
            raise self.fault(f"{key}={value!r} is not supported", f"Known: {known}.")

    def fault(self, problem: str, remedy: str) -> ModelError:
        """Return the error DIST0334."""
        return ModelError("DIST0334", problem, location=self.location, remedy=remedy)
