"""What several experiments measure in the same way."""

from __future__ import annotations

from normbook.experiments import measures


def test_steps_run_from_half_to_four_times_the_learning_rate() -> None:
    assert measures.step_sizes(2.0) == [1, 2, 3, 4, 5, 6, 7, 8]
