"""What pipeline and data parallelism make of an engine."""

from __future__ import annotations

import pytest

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import AcceleratorOption
from holdfast.enginemodel.enginetimer import SharedTimer
from holdfast.enginemodel.prior import PriorSource, engine_prior, option_prior
from holdfast.enginemodel.steplaw import StepLaw

MODEL, LARGE = "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B-Instruct"


def test_engines_of_data_are_each_the_engine_alone() -> None:
    alone, several = engine_prior(MODEL, "h100", tensor=2), engine_prior(MODEL, "h100", tensor=2, data=4)
    assert (several.law, several.kv_tokens, several.engines) == (alone.law, alone.kv_tokens, 4)
    assert several.limits(None, None) == alone.limits(None, None)


def test_a_token_passes_all_stages_so_a_step_is_as_long_as_on_one_of_them() -> None:
    stages, tensor = engine_prior(MODEL, "h100", pipeline=2), engine_prior(MODEL, "h100", tensor=2)
    assert stages.law == engine_prior(MODEL, "h100").law
    assert stages.law.step_seconds((), 1, 512.0) > 1.5 * tensor.law.step_seconds((), 1, 512.0)


def test_micro_batches_share_sequences_and_cache_and_have_all_tokens_each() -> None:
    stages, tensor = engine_prior(LARGE, "h100", tensor=4, pipeline=2), engine_prior(LARGE, "h100", tensor=8)
    assert stages.engines == 2
    graphs = [prior.parts(prior.limits(None, None)).graph_bytes for prior in (tensor, stages)]
    saved = (graphs[0] - graphs[1]) / tensor.memory.token_bytes  # a stage captures those of its own layers
    assert 2 * stages.kv_tokens == pytest.approx(tensor.kv_tokens + saved, rel=0.01)
    assert (stages.limits(300, 2048).max_num_seqs, stages.limits(300, 2048).max_num_batched_tokens) == (150, 2048)
    assert stages.limits(1, None).max_num_seqs == 1


def test_stages_make_room_for_weights_that_one_gpu_does_not_hold() -> None:
    assert engine_prior(LARGE, "h100").kv_tokens == 0
    assert engine_prior(LARGE, "h100", pipeline=2).kv_tokens > 0
    assert engine_prior(LARGE, "h100", data=2).kv_tokens == 0


def test_what_an_engine_reports_of_its_cache_is_divided_among_its_micro_batches() -> None:
    facts = EngineFacts(kv_tokens=100_000.0, parallel_gpus=4)
    option = AcceleratorOption("h100", gpus_per_replica=4, pipeline=2, facts=facts)
    assert option_prior(MODEL, option).kv_tokens == 50_000
    assert option_prior(MODEL, option).law == engine_prior(MODEL, "h100", tensor=2).law


def test_an_option_has_the_gpus_of_its_tensor_parallel_engines() -> None:
    option = AcceleratorOption("h100", gpus_per_replica=8, data=4)
    assert option_prior(MODEL, option) == engine_prior(MODEL, "h100", tensor=2, data=4)
    assert option_prior(MODEL, option).source is PriorSource.TABLE


def test_engines_that_share_a_step_take_as_long_as_the_longest() -> None:
    law = StepLaw(c0=1.0, c1=0.5, c2=0.25, c3=0.0, c4=0.0)
    shared = SharedTimer(law, 2)
    assert shared.step_seconds((), 4, 100.0) == law.step_seconds((), 2, 100.0)
    assert shared.step_seconds((), 5, 100.0) == law.step_seconds((), 3, 100.0)
    assert shared.step_seconds(((8, 0),), 0, 0.0) == law.step_seconds(((8, 0),), 0, 0.0)
    assert shared.step_seconds(((8, 0), (8, 0)), 0, 0.0) == law.step_seconds(((8, 0),), 0, 0.0)
    assert shared.parted(2.0, 1.0).step_seconds((), 2, 0.0) == law.parted(2.0, 1.0).step_seconds((), 1, 0.0)
