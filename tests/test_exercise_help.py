"""An index in a hint is shown as one, and what a reader has to type stays as it is."""

from __future__ import annotations

import exercise_help
import pytest


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a row's W_h x, at h_t", "a row's W<sub>h</sub> x, at h<sub>t</sub>"),
        ("the largest |γ_q γ_k|;", "the largest |γ<sub>q</sub> γ<sub>k</sub>|;"),
        ("a function of rate, norm_g, c_out", "a function of rate, norm_g, c_out"),
        ("c_T: one of 'w_h', 'b'", "c<sub>T</sub>: one of 'w_h', 'b'"),
        ("s < t & 1", "s &lt; t &amp; 1"),
    ],
)
def test_an_index_is_shown_and_a_name_is_not_changed(text: str, shown: str) -> None:
    assert exercise_help.shown(text) == shown


def test_the_help_of_an_exercise_shows_its_indices() -> None:
    assert "W<sub>h</sub>" in exercise_help.help_for("wh-monitor")
