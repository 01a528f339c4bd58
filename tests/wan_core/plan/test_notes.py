"""A plan says what token routes save, where they pay, and where 8-bit weights are not needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.workloads import t2v_1_3b
from wan_core.job.remarks import routes_remark
from wan_core.placement import FreeMemory, MemoryEstimate, MemoryMeasures
from wan_core.plan import MemoryPlan, Workload, notes
from wan_core.plan.cards import card_named
from wan_core.plan.notes import notes_of, quantized_for_nothing, routed_of, routes_offered
from wan_core.plan.report import plan_sentences, report_of
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(1)

GIB = 1 << 30


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """T2V-1.3B in bf16, clips of 832x480x49: 20,280 tokens."""
    return t2v_1_3b(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(small: Workload) -> MemoryEstimate:
    return small.estimate(small.shape(), MemoryMeasures())


def planned(job: Workload, estimate: MemoryEstimate, gibibytes: float = 23, **settings: str) -> MemoryPlan:
    """A plan with the fewest measures, without a search for the fastest."""
    job = replace(job, train=replace(job.train, **settings))
    return MemoryPlan(job=job, room=FreeMemory(devices={"cpu": int(gibibytes * GIB)}), estimate=estimate)


def test_token_routes_are_drawn_with_what_they_save(
    small: Workload, plain: MemoryEstimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryPlan, "card", card_named("RTX 4090"))
    plan = planned(small, plain, tread_routes="0.5: 2..-2")
    routed = routed_of(plan, plan.card)
    assert routed is not None
    assert routed.kept == (1.0, 1.0, *[0.5] * 27, 1.0)
    assert routed.drawn() == "██" + "▅" * 27 + "█"
    # docs/measured/token_routes.md counts 0.40 of the arithmetic at this size.
    assert routed.flops_saved == pytest.approx(0.60, abs=0.005)
    assert routed.time_saved is not None
    assert 0.5 < routed.time_saved < routed.flops_saved
    assert report_of(plan)["routes"]["kept"][1:3] == (1.0, 0.5)
    said = plan_sentences(plan)
    assert f"tokens by layer: {routed.drawn()}" in said
    assert "layers 2 to 28 see 50 % of 20,280 tokens. A step has 60 % less arithmetic, and is predicted" in said
    assert "They are advised from 30,000 tokens on" in said
    assert routes_remark(plan.job.train) in said
    useless = notes_of(plan, replace(routed, time_saved=0.04))
    assert "Token routes save no time worth their cost here: leave tread_routes empty." in useless
    assert routed_of(planned(small, plain, tread_routes="0: 2..-2"), None) is None
    assert routes_remark(TrainConfig(tread_routes="0: 2..-2")) == ""


def test_routes_are_offered_only_for_many_tokens(small: Workload, plain: MemoryEstimate) -> None:
    long = replace(small, step=replace(small.step, latent_frames=21))
    assert routes_offered(long).startswith('32,760 tokens a clip: tread_routes "0.25: 2..-2" takes 3')
    assert routes_offered(small) == ""
    assert routes_offered(planned(long, plain, tread_routes="0.5: 2..-2").job) == ""


def test_eight_bits_are_not_needed_where_it_fits_without(
    small: Workload, plain: MemoryEstimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = replace(small, model=small.model.with_quantize(QuantizeConfig()))
    plan = planned(quantized, plain, 23)
    assert quantized_for_nothing(plan)
    assert [one for one in notes_of(plan, None) if one.startswith("8-bit weights are not needed here")]
    assert not quantized_for_nothing(planned(small, plain, 23))
    peak = plain.devices["cpu"].peak / GIB
    fits = [quantized_for_nothing(planned(quantized, plain, gib)) for gib in (peak - 0.1, peak + 0.1)]
    assert fits == [False, True]
    offloads = replace(small.train, checkpointing_policy="custom", checkpointing_names_offloaded=("attn_output",))
    assert quantized_for_nothing(replace(plan, job=replace(quantized, train=offloads), gain=0.1))
    monkeypatch.setattr(notes, "weights_once_loaded", lambda *_: 30 * GIB)
    assert not quantized_for_nothing(plan), "14B on 24 GB: nothing more is counted"
