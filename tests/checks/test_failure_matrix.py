"""The matrix of failures is complete, and compares lost processes with those of plain CRIU."""
import kill_matrix
from lab import failure_cases
from lab.arena import LOST


def test_failure_matrix_covers_every_migration_state():
    assert failure_cases.missing_states() == set()


def test_more_lost_processes_than_with_plain_criu_are_a_failure():
    lost, survived = [LOST], ["stayed"]
    assert not kill_matrix.lost_more(lost * 6 + survived * 34, lost * 5 + survived * 35)
    assert kill_matrix.lost_more(lost * 30 + survived * 10, lost * 5 + survived * 35)
    assert kill_matrix.lost_more(lost * 3 + survived * 37, survived * 40)
