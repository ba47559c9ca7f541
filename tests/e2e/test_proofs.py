"""The checks of test_moves.py and of the demo detect wrong memory."""
from lab.peers import TarMove
from lab.programs import SteadyWorker
from lab.proofs import Before, prove


def test_one_flipped_byte_of_memory_is_detected(lab, nodes):
    """One byte of the page image changes between dump and restore. The worker runs; only its memory
    is wrong."""

    class Tampering(TarMove):
        def _restore(self, options):
            pages = max(
                self.target.host_path(self._at_target).glob("pages-*.img"),
                key=lambda file: file.stat().st_size,
            )
            with open(pages, "r+b") as image:
                image.seek(pages.stat().st_size // 2)
                byte = image.read(1)[0]
                image.seek(-1, 1)
                image.write(bytes([byte ^ 1]))
            super()._restore(options)

    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=32)
    worker.wait_for_lines(20)
    before = Before(worker)
    move = Tampering(nodes.source, nodes.target)
    move.prepare("tampered")
    move.move(worker)
    worker.wait_for_lines(20)
    claims = prove(worker, before, nodes.source, nodes.target)
    worker.end()
    move.clean()
    assert [what for what, holds, _ in claims if not holds] == ["memory"]
