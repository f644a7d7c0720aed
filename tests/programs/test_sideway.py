"""The tests and examples of the crate sideway, a wrapper of verbs and librdmacm in Rust, as crates.io has them."""

import json
from functools import partial
from pathlib import Path

import pytest
from lab.rows import PLACE, burst_run

SECONDS = 120
BUILT = PLACE / "sideway" / "tests.json"
VERSION = "0.4.3"
#: Of a test that found no completion after its 10 ms.
TRIES = 10
TESTS = ["test_atomic", "test_cq", "test_mr_and_cq", "test_post_send", "test_qp"]

pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not BUILT.exists(), reason="sideway's tests are missing: scripts/install-deps --programs builds them"),
]


def program(name):
    """A program that cargo built for the crate."""
    lines = map(json.loads, BUILT.read_text().splitlines())
    built = [line for line in lines if line["reason"] == "compiler-artifact" and line["target"]["name"] == name and line.get("executable")]
    return Path(built[-1]["executable"])


@pytest.mark.program("sideway's tests (crates.io)", partial(str, VERSION))
@pytest.mark.parametrize("test", TESTS)
def test_of_sideway(hosts, command, test):
    words = [program(test), *command(test, "--test-threads=1")[1:]]
    for _ in range(TRIES):
        code, text = hosts.a.run(*burst_run(hosts.a), *words, seconds=SECONDS)
        # It sleeps for 10 ms and then polls once: on a busy machine another process, the daemon, may not have run by then.
        if "value: CompletionQueueEmpty" not in text:
            break
    assert code == 0 and "test result: ok" in text, text


@pytest.mark.program("sideway's rc_pingpong (crates.io)", partial(str, VERSION))
def test_rc_pingpong_of_sideway(hosts, command):
    words = [program("rc_pingpong"), *command("rc_pingpong", "--gid-idx", hosts.a.gid_index(hosts.a.address))[1:]]
    server = hosts.b.start(*burst_run(hosts.b), *words)
    try:
        server.wait_for_text("local address", SECONDS)
        code, text = hosts.a.run(*burst_run(hosts.a), *words, hosts.b.address, seconds=SECONDS)
        assert code == 0 and "bytes in" in text, text + server.text()
        assert server.wait(SECONDS) == 0, server.text()
    finally:
        server.stop()
