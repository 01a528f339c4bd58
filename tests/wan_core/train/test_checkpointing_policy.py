"""The settings of checkpointing: what they make of the model, and what they refuse."""

from __future__ import annotations

import pytest

from wan_core.errors import ConfigError
from wan_core.model import Policy
from wan_core.plan.choices import requested_measures
from wan_core.train import TrainConfig


def test_a_named_policy_and_a_custom_one() -> None:
    assert TrainConfig().keeps == Policy()
    assert TrainConfig(checkpointing_policy="attn_output").keeps == Policy(saved=frozenset({"attn_output"}))
    custom = TrainConfig(
        checkpointing_policy="custom",
        checkpointing_names_saved=("attn_output",),
        checkpointing_names_offloaded=("query_proj", "key_proj"),
    )
    assert custom.keeps == Policy(frozenset({"attn_output"}), frozenset({"query_proj", "key_proj"}))


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'checkpointing_names_saved has "attn_out".*attn_output'):
        TrainConfig(checkpointing_policy="custom", checkpointing_names_saved=("attn_out",))


def test_a_list_that_nobody_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="only where checkpointing_policy is custom"):
        TrainConfig(checkpointing_names_offloaded=("attn_output",))


def test_a_compiled_block_has_no_activations_to_name() -> None:
    with pytest.raises(ConfigError, match='compile does not work with checkpointing_policy "attn_output"'):
        TrainConfig(compile=True, checkpointing_policy="attn_output")


def test_what_a_policy_offloads_leaves_the_gpu_or_is_refused() -> None:
    away = TrainConfig(checkpointing_policy="offload_matmul_without_batch")
    assert requested_measures(away).offload_inputs
    assert not requested_measures(TrainConfig()).offload_inputs
    with pytest.raises(ConfigError, match=r"offload_activations is off\. Set it to auto"):
        TrainConfig(checkpointing_policy="offload_matmul_without_batch", offload_activations="off")
