"""The code reference says of a class what its author says, and no more."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import plain_members

from normbook.lab import digits_mlp

APP: Any = SimpleNamespace()


class Pair(NamedTuple):
    """Two numbers."""

    first: int

    @property
    def double(self) -> int:
        """Return twice the first."""
        return 2 * self.first


def test_a_field_without_words_is_left_out_and_all_else_stays() -> None:
    def is_left_out(member: object) -> bool | None:
        return plain_members.skip_field(APP, "class", "name", member, False, None)

    assert is_left_out(Pair.first)
    assert is_left_out(digits_mlp.Split.x_train)
    assert is_left_out(Pair.double) is None
    assert is_left_out(digits_mlp.Split.batches) is None


def test_of_a_class_as_a_default_the_name_is_shown() -> None:
    def shown(signature: str | None) -> tuple[str, str | None] | None:
        return plain_members.name_classes(APP, "", "", None, None, signature, None)

    assert shown("(x, norm=<class 'torch.nn.Linear'>)") == ("(x, norm=Linear)", None)
    assert shown("(of=<class 'int'>, eps=1e-05)") == ("(of=int, eps=1e-05)", None)
    assert shown("(curves=<factory>)") == ("(curves=...)", None)
    assert shown(None) is None
