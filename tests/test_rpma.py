"""librpma (Debian's) between two hosts: a library over librdmacm and verbs that is not part of rdma-core.

Programs that use it poll one completion per wake-up and expect the completion of a SEND before the RECV of its answer.
"""

import pytest

from conftest import BUILD

ORDER = BUILD / "programs" / "rpma" / "order"
PORT, SECONDS, ROUNDS = 7204, 60, 500

pytestmark = pytest.mark.skipif(not ORDER.exists(), reason="librpma-dev is missing: scripts/install-deps, make build")


def test_the_completion_of_a_send_comes_before_the_answer(fabric):
    server = fabric.b.start(ORDER, fabric.b.address, PORT)
    try:
        server.wait_for_text("listening", SECONDS)
        code, text = fabric.a.run(ORDER, fabric.b.address, PORT, ROUNDS, seconds=SECONDS)
        assert code == 0, f"{text}\nserver: {server.text()}"
        assert text == f"0 of {ROUNDS} answers before the completion of their SEND\n"
        assert server.wait(SECONDS) == 0, server.text()
    finally:
        server.stop()
