"""The witness's log shows whether a copy began where its original was."""
from types import SimpleNamespace

import pytest
from lab.node import LabError
from lab.programs import chain_state
from lab.witness import Witness


def witness_with_log(directory, original, copy):
    """Returns a witness whose log has the lines with these counts: of the original, and of the
    copy."""
    witness = Witness.__new__(Witness)
    witness._source, witness._target = SimpleNamespace(name="one"), SimpleNamespace(name="two")
    witness.log = directory / "log"
    counts = [(count, "one") for count in original] + [(count, "two") for count in copy]
    witness.log.write_text(
        "".join(
            f"{count} {chain_state(0, count)} {node} {100 + i} {100 + i} 0\n"
            for i, (count, node) in enumerate(counts)
        )
    )
    return witness


@pytest.mark.parametrize("first", [3, 5, 6])
def test_copy_begins_at_any_step_of_its_original(tmp_path, first):
    witness_with_log(tmp_path, range(1, 6), range(first, 9)).check_log_of_copy()


def test_copy_that_begins_behind_its_original_is_wrong(tmp_path):
    with pytest.raises(LabError, match="began with 7"):
        witness_with_log(tmp_path, range(1, 6), range(7, 9)).check_log_of_copy()


def test_original_and_copy_may_both_write_the_line_that_was_complete_in_memory(tmp_path):
    witness = witness_with_log(tmp_path, range(1, 6), range(4, 9))
    lines = witness.log.read_text().splitlines()
    witness.log.write_text("\n".join([*lines[:5], lines[2], *lines[5:]]) + "\n")
    witness.check_log_of_copy()


def test_original_that_goes_back_is_wrong(tmp_path):
    witness = witness_with_log(tmp_path, [1, 2, 3, 2, 3, 4], range(3, 5))
    with pytest.raises(LabError, match="went back"):
        witness.check_log_of_copy()
