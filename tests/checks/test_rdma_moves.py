"""What tests/rdma_moves.py counts, and what it takes for right."""
import rdma_moves


def test_stall_is_from_the_first_queue_pair_that_holds_back_to_the_last_that_goes_on():
    holds = [(True, 10.0), (True, 10.25), (False, 12.0), (False, 12.5)]
    assert rdma_moves.stall_of(holds) == 2.5


def test_stall_without_an_end_is_not_known():
    assert rdma_moves.stall_of([]) is None
    assert rdma_moves.stall_of([(True, 10.0)]) is None
    assert rdma_moves.stall_of([(True, 10.0), (True, 10.0), (False, 11.0)]) is None


def test_row_says_what_was_not_checked_and_what_was_wrong():
    tally = rdma_moves.Tally("ucx", "nothing")
    tally.downtimes, tally.stalls = [1.0, 3.0], [2.0, 4.0]
    assert tally.row() == "| ucx | 2 | not checked | 3.00 / 4.00 s | 2.00 / 3.00 s |"
    tally = rdma_moves.Tally("checker", "every byte")
    tally.faults.append("checker: byte 7")
    assert tally.row() == "| checker | 0 | 1 (every byte) | - | - |"


def test_library_log_has_the_times_of_holding_back(tmp_path):
    program = rdma_moves.movable.Program.__new__(rdma_moves.movable.Program)
    program.log = tmp_path / "log"
    assert program.holds() == []
    program.log.write_text(
        "ppmr-verbs[7] 12.500 queue pair 11 holds back\n"
        "ppmr-verbs[7] 12.600 release begins\n"
        "ppmr-verbs[7] 14.000 queue pair 11 goes on\n"
    )
    assert program.holds() == [(True, 12.5), (False, 14.0)]
