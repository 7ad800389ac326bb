"""A rule of several tasks in the code of Lu et al. (2021): the test rows are the validation rows."""

from collections.abc import Mapping

from reservoir.tasks.source import NoSelection
from reservoir.tasks.task import Split

TEST_IS_VALID = NoSelection(
    reason="with --protocol paper its test rows are its validation rows",
    remedy="leave out --protocol paper",
)


def with_valid_as_test(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of a piece, with the validation rows as test rows."""
    return {**splits, **({"test": splits["valid"]} if "valid" in splits else {})}
