"""Linux's connection manager while forged requests fill Burst: it answers the question that proves its address, and connects."""

import signal
import struct

from lab import roce, wait_until
from rig import frames

FORGED, SILENT, SERVED = 6_000, 7500, 7174
UD_SEND_ONLY, ACTIVE_MAC = 0x64, "52:54:77:00:00:01"


def forged_request(number, victim):
    """A REQ from an address of its own, to which the victim has no route."""
    source = ".".join(str(byte) for byte in (0x0B000000 + number).to_bytes(4, "big"))
    data = roce.cm_header(source, victim, 40000) + bytes(56)
    mad = roce.mad(roce.req(number + 1, number + 2, SILENT, data), roce.ATTRIBUTES["REQ"], 5)
    bth = struct.pack("!BBHII", UD_SEND_ONLY, 0x40, 0xFFFF, roce.GSI_QPN, number)
    transport = bth + struct.pack("!II", roce.GSI_QKEY, roce.GSI_QPN) + mad
    return frames.frame(transport, source, victim, ACTIVE_MAC)


def await_listener(host, port):
    wait_until(lambda: f"{port}" in host.burst("cm", "--connections", "--json", "--state", "listening")[1], 20)


def test_linux_connects_while_forged_requests_fill_the_connection_manager(rig):
    host = rig.host
    # Earlier tests have proved the guest's address to the daemon.
    host.daemon.stop()
    host.start_daemon(rig.port, rig.extra)
    silent = host.start("cmtime", "-b", host.address, "-p", SILENT)
    served = host.start("rping", "-s", "-a", "0.0.0.0", "-P", "-p", SERVED)
    try:
        for port in (SILENT, SERVED):
            await_listener(host, port)
        silent.stand_still()
        before = host.stats()["cm_address_asked"]
        for number in range(FORGED):
            rig.inject(forged_request(number, host.address))
        wait_until(lambda: host.stats()["cm_address_asked"] > before, 20)
        asked = host.stats()["cm_address_asked"]
        code, text = rig.guest.run("rping", "-c", "-a", host.address, "-C", 1, "-p", SERVED, seconds=60)
        assert code == 0, text
        assert host.stats()["cm_address_asked"] > asked, "the guest was not asked"
    finally:
        silent.stop(signal.SIGKILL)
        served.stop(signal.SIGKILL)
