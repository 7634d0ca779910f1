"""Every cheating kernel is rejected, for the reason it names; every honest one is verified. The kinds are those of published evaluators' issue
threads and audits; the CUDA files are compiled in tests/targets/test_cuda_cheats.py and judged in tests/gpu/test_gpu_cheats.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel.judge.lane import Lane

from .fixtures import Fixture, fixtures

CPP, CUDA = fixtures("cpp"), fixtures("cuda")
CHEATS, HONEST = [f for f in CPP if f.kind], [f for f in CPP if not f.kind]

# What a kernel can try, by number, and what shows that it does not work: fixtures (cpp first), or the test of a refusal where the kernel file has
# no words for it.
KINDS = {
    1: ("work on a side stream", "cu/side_stream"),
    2: ("a thread or process that finishes after the call", "cpp/starts_a_thread", "cpp/forks"),
    3: ("an output computed when it is compared", "cpp/lazy_output", "cu/lazy_output"),
    4: ("patched clocks, events or statistics", "cpp/patched_clock", "cu/profiler_counter"),
    5: ("a forged verdict on a descriptor", "cpp/writes_a_file", "cpp/exits", "cu/prints"),
    6: ("several calls' work in one", "cpp/batched_calls", "cu/batched_calls"),
    7: ("work put off to the next call", "cpp/put_off", "cu/put_off"),
    8: ("counting calls, then skipping", "cpp/counts_calls", "cpp/lock_left_held", "cu/counts_in_persisted_memory", "cu/launch_counter"),
    9: ("one shape that reports no time", "cpp/one_shape_takes_no_time", "cu/one_shape_takes_no_time"),
    10: ("data kept in L2 across the flush", "cu/stays_in_l2", "cu/prefetch_evict_last", "cu/cache_hint_by_number"),
    11: ("a sabotaged baseline", "cpp/sets_threads", "tests/judge/test_lane.py"),
    12: ("work moved out of the timed window", "cpp/constructor", "cpp/weights_prepared_from_inputs", "cu/weights_prepared_from_inputs"),
    13: ("a replay over stale buffers", "cu/stale_buffers"),
    14: ("a cache keyed by pointer", "cpp/thread_local_cache", "cu/pointer_keyed_cache"),
    15: ("a cache keyed by a sample of the content", "cpp/content_sampled", "cu/content_sampled"),
    16: ("the last result again", "cpp/scratch_carries_over", "cpp/looks_into_other_slots", "cu/answer_of_another_slot", "cu/result_table"),
    17: ("memory that outlives the call or the process", "cpp/allocates", "cpp/shared_segment", "cu/device_malloc"),
    18: ("derived weights kept after the weights changed", "cpp/prepares_once", "cu/prepares_once"),
    19: ("one static output", "cpp/one_static_result", "cu/managed_memory"),
    20: ("an uninitialised output", "cpp/nothing_written", "cpp/only_true_written", "cu/nothing_written", "cu/only_true_written"),
    21: ("a search for the expected values in the process", "cpp/searches_memory"),
    22: ("a scan of addresses", "cpp/walks_the_address_space", "cu/scans_addresses"),
    23: ("NaN written into expected values", "cpp/nan_beside_the_output", "cu/nan_beside_the_output"),
    24: ("inputs made trivial", "cpp/writes_its_input", "cu/writes_its_input", "cu/makes_its_input_trivial"),
    25: ("parameters changed", "cpp/writes_a_weight", "cu/writes_a_weight"),
    26: ("a copy where the task changes little", "cpp/copies_its_input", "cu/copies_its_input", "tests/judge/test_admission.py"),
    27: ("writes out of bounds, races, uninitialised reads", "cpp/writes_into_padding", "cpp/race", "cu/missing_barrier", "cu/writes_past_the_end"),
    28: ("constants within a tolerance", "cpp/zeros", "cpp/near_uniform", "cu/zeros", "cu/ones"),
    29: ("the distribution folded into a constant", "cpp/constant_mean", "cpp/every_second_column_summed", "cu/constant_mean"),
    30: ("part of the work", "cpp/half_the_rows", "cpp/second_output_guessed", "cu/tail_columns_skipped", "cu/last_block_missing"),
    31: ("shapes hard-coded", "cpp/hard_coded_shape", "cpp/strides_ignored", "cu/hard_coded_shape"),
    32: ("honest at the checked shape only", "cpp/cheats_at_the_timed_shape", "cu/cheats_at_the_timed_shape"),
    33: ("an exact path where data looks like a test", "cpp/magnitude_sniffing", "cpp/epsilon_left_out", "cu/magnitude_sniffing"),
    34: ("a look at the environment, the clock, the profiler", "cpp/reads_the_clock", "cpp/reads_the_environment", "cu/reads_the_clock"),
    35: ("inputs known beforehand", "cpp/known_seed", "cpp/scalar_baked_in", "cpp/indices_of_one_draw", "cu/scalar_baked_in"),
    36: ("reduced precision under a strict contract", "cpp/half_precision", "cpp/short_mantissas", "cu/library_in_tf32", "cu/tensor_cores_in_bf16"),
    37: ("scale or bias skipped", "cpp/affine_skipped", "cpp/bias_skipped", "cu/affine_skipped", "cu/bias_skipped"),
    38: ("training taken for evaluation", "cpp/evaluation_mode", "cpp/statistics_not_updated", "cu/statistics_not_updated"),
    39: ("the reference or a framework inside", "cpp/torch_header", "cu/torch_header"),
    40: ("a decoy", "cpp/decoy", "cu/decoy"),
    41: ("a vendor's library that is not named", "cpp/vendor_library", "cu/vendor_header", "cu/host_function"),
    42: ("harness or tolerance files edited", "cpp/edits_the_harness"),
    43: ("obfuscation", "cpp/opens_libraries", "cpp/inline_assembly", "cu/pasted_counter", "cu/opens_libraries"),
    44: ("words to a reviewing model", "cpp/talks_to_the_reviewer", "cu/talks_to_the_reviewer"),
    45: ("bombs, floods, files and keys", "cpp/forks", "cpp/prints", "cpp/loops_for_ever", "cu/assert_flood", "cu/reads_a_host_file_at_build"),
}


def test_there_are_enough() -> None:
    assert len(CHEATS) >= 50 and len(HONEST) >= 14


def test_every_kind_has_a_fixture_or_a_named_test() -> None:
    root, here = Path(__file__).parents[2], Path(__file__).parent
    numbers = {f.kind for f in (*CPP, *CUDA) if f.kind}
    assert set(KINDS) == set(range(1, 46)) and numbers <= set(KINDS)
    shown = [(number, name) for number, (_, *names) in KINDS.items() for name in names]
    for number, name in shown:
        found = [root / name] if name.startswith("tests/") else list(here.glob(f"{name}.c*"))
        assert found and found[0].exists(), f"kind {number}: {name} is not there"
    assert not set(range(1, 46)) - numbers, "kinds without a file of their own"


@pytest.mark.parametrize("fixture", CHEATS, ids=lambda f: f.name)
def test_a_cheat_is_rejected_for_its_reason(fixture: Fixture, lane_for: Callable[[Path], Lane]) -> None:
    verdict = lane_for(fixture.task).judge(fixture.kernel)
    assert fixture.as_expected(verdict), f"{verdict.status}: {verdict.message}"
    assert verdict.timing is None
    assert len(verdict.message.splitlines()) <= 30


@pytest.mark.parametrize("fixture", HONEST, ids=lambda f: f.name)
def test_an_honest_kernel_with_odd_habits_is_verified(fixture: Fixture, lane_for: Callable[[Path], Lane]) -> None:
    verdict = lane_for(fixture.task).judge(fixture.kernel, patience=0.3)  # times do not matter here
    assert fixture.as_expected(verdict), verdict.message
    assert verdict.timing is not None
    assert verdict.errors and all(row.passed for row in verdict.errors)
