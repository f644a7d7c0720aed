"""DiSNI, verbs for Java: its examples between two hosts.

BURST_DISNI names a folder with disni-*.jar and the jars that it needs (Maven central), disni-tests.jar (its examples) and libdisni.so."""

import os
from pathlib import Path

import pytest
from lab.rows import burst_run, foreign, needs

SECONDS = 180
PLACE = Path(os.environ.get("BURST_DISNI", "/nonexistent"))


def version():
    return next((jar.stem.removeprefix("disni-") for jar in PLACE.glob("disni-[0-9]*.jar")), "?")


pytestmark = [pytest.mark.download, foreign("BURST_DISNI", "DiSNI's jars and libdisni.so"), needs("java", "default-jdk-headless")]

#: Class of the server, the line with which it is ready, class of the client, and the data that the client shows.
EXAMPLES = [
    ("ReadServer", "server bound to address", "ReadClient", "read memory from server: This is a RDMA/read on stag"),
    ("SendRecvServer", "servers bound to address", "SendRecvClient", "Message from the server: Hello from the server"),
    ("VerbsServer", "VerbsServer::starting", "VerbsClient", "read memory from server: This is a RDMA/read on stag"),
]


def java(host, name):
    """Words of a program of DiSNI on a host."""
    # Java 17 exports this package to no other.
    exports = ["--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"]
    return [*burst_run(host), "java", "-Xmx256m", *exports, f"-Djava.library.path={PLACE}", "-cp", f"{PLACE}/*", f"com.ibm.disni.{name}"]


@pytest.mark.parametrize("server, ready, client, said", EXAMPLES, ids=[example[2] for example in EXAMPLES])
@pytest.mark.program("DiSNI, its examples", version)
def test_examples(hosts, command, server, ready, client, said):
    address = ["-a", hosts.b.address, "-p", 1919]
    second = hosts.b.start(*java(hosts.b, f"examples.{server}"), *address)
    try:
        second.wait_for_text(ready, SECONDS)
        words = java(hosts.a, f"examples.{client}") + address
        code, text = hosts.a.run(*words, seconds=SECONDS)
        while "wrong event received" in text and second.running():
            # VerbsServer says nothing when it listens: it refused this one.
            code, text = hosts.a.run(*words, seconds=SECONDS)
        command("java", f"com.ibm.disni.examples.{client}", *address)
        assert code == 0 and said in text, text + second.text()
        assert second.wait(SECONDS) == 0, second.text()
    finally:
        second.stop()
