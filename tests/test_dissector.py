"""The Wireshark dissectors of the selective repeat family and of hellos (share/wireshark/burst.lua) read one golden packet of each opcode.

`crates/bytes/wire/tests/all/selective.rs` writes the packets: each field follows from the opcode's number. scapy computes the ICRCs.
"""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "share/wireshark/burst.lua"
VECTORS = ROOT / "crates/bytes/wire/tests/vectors"
GOLDEN = VECTORS / "selective-repeat.pcap"
SYSTEM_PYTHON = "/usr/bin/python3"

SENDS, WRITES, READ_REQUEST, READ_RESPONSES = {*range(0x06), 0x16, 0x17}, {*range(0x06, 0x0C)}, 0x0C, {*range(0x0D, 0x11)}
ACK, ATOMIC_ACK, CMP_SWAP, FETCH_ADD, READ_ACK, PROBE = 0x11, 0x12, 0x13, 0x14, 0x15, 0x18
IMMEDIATE, INVALIDATE = {0x03, 0x05, 0x09, 0x0B}, {0x16, 0x17}
STARTS_NOT = {0x01, 0x02, 0x03, 0x07, 0x08, 0x09, 0x0E, 0x0F, 0x16}
REQUESTS = SENDS | WRITES | {READ_REQUEST, CMP_SWAP, FETCH_ADD}

FIELDS = """opcode ackreq psn qpn srqn version probe repair xn rsn msn lane poff addr rkey length swap compare original imm invalidate
syndrome pressure ce words trigger delay ce_packets received trigger_xn sacked payload pad""".split()

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed (scripts/install-deps installs it)")


def tshark(*words, path=GOLDEN):
    # In namespaces without names a user's own configuration is of no use.
    done = subprocess.run(["tshark", "-X", f"lua_script:{SCRIPT}", "-r", path, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout


def read(text):
    """A field as tshark prints it: absent, a number, or several."""
    values = [int(word, 0) for word in text.split(",") if word]
    return values[0] if len(values) == 1 else values or None


def packets():
    words = ["-T", "fields", "-E", "separator=|", "-e", "_ws.malformed", "-e", "_ws.expert.message"]
    for field in FIELDS:
        words += ["-e", f"burst_sr.{field}"]
    for line in tshark(*words).splitlines():
        malformed, expert, *values = line.split("|")
        assert not malformed and not expert, line
        row = dict(zip(FIELDS, values, strict=True))
        payload = row.pop("payload").replace(":", "")
        yield {name: read(text) for name, text in row.items()} | {"payload": payload or None}


def expected(opcode):
    """The fields of the golden packet of this opcode, by the format table of docs/protocol.md."""
    low, xrc = opcode & 0x1F, opcode >= 0xE0
    is_start = low not in STARTS_NOT
    row = dict.fromkeys(FIELDS)
    row |= {"opcode": opcode, "psn": 0x100000 + opcode, "qpn": 0x1200 + opcode, "pad": 0}
    row["ackreq"] = int(low not in {0x00, 0x01, 0x06, 0x07, 0x0D, 0x0E})
    if xrc and low in REQUESTS:
        row["srqn"] = 0x040000 + opcode
    if low not in (ACK, READ_ACK):
        repair = int(low == READ_REQUEST)
        row |= {"version": 0, "probe": int(low == PROBE), "repair": repair, "xn": 2, "lane": 0}
        row["msn" if low in READ_RESPONSES else "rsn"] = 0x010200 + opcode
        row["poff"] = 0 if is_start and not repair else 0x0500 + opcode
    if low in WRITES:
        row |= {"addr": 0x7F00112233440000 + opcode, "rkey": 0xABCD0000 + opcode}
    if low == READ_REQUEST:
        row |= {"addr": 0x7E00112233440000 + opcode, "rkey": 0xBCDE0000 + opcode, "length": 0x2000 + opcode}
    if low in (CMP_SWAP, FETCH_ADD):
        row |= {"addr": 0x7D00112233445560, "rkey": 0xCDEF0000 + opcode}
        row |= {"swap": 0x1111000000000000 + opcode, "compare": 0x2222000000000000 + opcode}
    if low == ATOMIC_ACK:
        row["original"] = 0x3333000000000000 + opcode
    if low in IMMEDIATE:
        row["imm"] = 0xDEADBE00 + opcode
    if low in INVALIDATE:
        row["invalidate"] = 0xDEF00000 + opcode
    if low in (ACK, ATOMIC_ACK):
        row |= {"syndrome": 0x1F, "msn": 0x030000 + opcode}
    if low in (ACK, READ_ACK):
        row |= {"pressure": 2, "ce": 1, "words": 2 if low == ACK else 0, "trigger": 0x200000 + opcode, "delay": 0x300 + opcode}
        row |= {"ce_packets": 0x400 + opcode, "received": 0x500 + opcode, "trigger_xn": 3}
    if low == ACK:
        row["sacked"] = [0x100000 + opcode + 2 + bit for bit in (0, 9, 127)]
    if low in SENDS | WRITES | READ_RESPONSES:
        many = low in {0x00, 0x01, 0x06, 0x07, 0x0D, 0x0E}
        row["payload"] = bytes(range(256)).hex() if many else bytes(range(1, 8)).hex()
        row["pad"] = 0 if many else 1
    return row


def test_each_golden_packet_is_read_as_the_format_table_says():
    rows = list(packets())
    assert [row["opcode"] for row in rows] == [*range(0xC0, 0xD9), *range(0xE0, 0xF9)]
    for row in rows:
        assert row == expected(row["opcode"]), hex(row["opcode"])


def test_the_icrcs_of_the_golden_packets_are_right_by_scapy():
    script = Path(__file__).with_name("icrc_by_scapy.py")
    done = subprocess.run([SYSTEM_PYTHON, script, GOLDEN], capture_output=True, text=True)
    assert done.stdout.endswith("50 packets, 0 wrong\n"), done.stdout + done.stderr


@pytest.mark.parametrize("capture", ["rc-mixed-batch", "uc", "cm-rping-ipv6"])
def test_other_packets_are_read_as_without_the_script(capture):
    path = VECTORS / f"{capture}.pcap"
    words = ["-V", "--disable-protocol", "rpcordma"]
    plain = subprocess.run(["tshark", "-r", path, *words], capture_output=True, text=True, check=True).stdout
    # The list of protocols of a frame names the dissector that was asked first.
    assert tshark(*words, path=path).replace("udp:burst_sr:infiniband", "udp:infiniband") == plain
    assert "InfiniBand" in plain


def cut(frame, length):
    """The first bytes of an IPv4 frame, with lengths that fit them."""
    ip_len = length - 14
    return frame[:16] + ip_len.to_bytes(2, "big") + frame[18:38] + (ip_len - 20).to_bytes(2, "big") + frame[40:length]


def test_truncated_packets_are_marked(tmp_path):
    """Cut at every byte behind the UDP header: tshark ends well, and marks each packet that has lost a header or its bitmap."""
    capture = GOLDEN.read_bytes()
    header, at, pieces = capture[:24], 24, []
    while at < len(capture):
        length = int.from_bytes(capture[at + 8:at + 12], "little")
        frame = capture[at + 16:at + 16 + length]
        at += 16 + length
        if frame[42] in (0xC6, 0xCC, 0xD1, 0xD2, 0xD3, 0xD5, 0xD8) and frame[12:14] == b"\x08\x00":
            pieces += [cut(frame, end) for end in range(43, min(length, 110))]
    path = tmp_path / "cut.pcap"
    records = (bytes(8) + len(piece).to_bytes(4, "little") * 2 + piece for piece in pieces)
    path.write_bytes(header + b"".join(records))
    out = tshark("-T", "fields", "-E", "separator=|", "-e", "burst_sr.opcode", "-e", "_ws.malformed", "-e", "_ws.expert.message",
                 "-e", "burst_sr.payload", path=path).splitlines()
    assert len(out) == len(pieces)
    for line, piece in zip(out, pieces, strict=True):
        assert "Lua Error" not in line, line
        opcode = piece[42]
        # A WRITE First only loses payload from its 36th byte on; the others are marked until they are whole.
        marked = "shorter" in line or "bitmap" in line
        assert marked != (opcode == 0xC6 and len(piece) - 42 >= 36), (len(piece) - 42, line)


# The Unified Bus (share/wireshark/unified_bus.lua), golden packets of crates/bytes/ubwire/tests/all/golden.rs.

BUS_SCRIPT = ROOT / "share/wireshark/unified_bus.lua"
BUS_GOLDEN = ROOT / "crates/bytes/ubwire/tests/vectors/unified-bus.pcap"
BUS_RESPONSES, BUS_ATOMICS, BUS_IMMEDIATE = {0x11, 0x12, 0x13}, {0x07, 0x08, *range(0x0B, 0x10)}, {0x01, 0x04, 0x05}
BUS_MEMORY = {0x03, 0x04, 0x05, 0x06} | BUS_ATOMICS


def bus_packets(*fields):
    words = ["-T", "fields", "-E", "separator=|", "-e", "_ws.malformed", "-e", "_ws.expert.message"]
    for field in fields:
        words += ["-e", f"ub.{field}"]
    done = subprocess.run(["tshark", "-X", f"lua_script:{BUS_SCRIPT}", "-r", BUS_GOLDEN, *words], capture_output=True, text=True)
    assert done.returncode == 0 and "Lua" not in done.stderr, done.stderr
    for line in done.stdout.splitlines():
        malformed, expert, *values = line.split("|")
        assert not malformed and not expert, line
        yield dict(zip(fields, values, strict=True))


def bus_numbers(*fields):
    return [{name: read(text) for name, text in row.items()} for row in bus_packets(*fields)]


def test_each_transaction_of_the_unified_bus_is_read():
    fields = """next tp.opcode tp.psn tp.source ta.opcode ta.tassn ta.jetty ta.offset ta.mode ta.context ta.number ta.order ta.alloc ta.acknowledges status info
addr token_id length token target.hint target.kind target.id operand swap imm notify.addr notify.token_id notify.token""".split()
    rows = [row for row in bus_numbers(*fields) if row["next"] == 2 and row["tp.opcode"] == 1 and row["ta.acknowledges"] is None]
    assert len(rows) == 17
    for row in rows:
        n = row["ta.opcode"]
        want = dict.fromkeys(fields) | {"next": 2, "tp.opcode": 1, "tp.psn": 0x100000 + n, "tp.source": 0x110000 + n, "ta.opcode": n}
        want |= {"ta.tassn": 0x600 + n, "ta.jetty": 0x700 + n, "ta.offset": 0x500 + n, "ta.context": 0x40 + n, "ta.mode": 1}
        if n in BUS_RESPONSES:
            want |= {"ta.mode": 0, "status": 0, "info": 2}
        else:
            want |= {"ta.number": 0x80 + n, "ta.order": 2, "ta.alloc": int(n == 3)}
        if n in BUS_MEMORY:
            want |= {"addr": 0x7F00112233440000 + n, "token_id": 0xA0000 + n, "length": 0x2000 + n}
        if n in BUS_MEMORY or n <= 1:
            want["token"] = 0xBEEF0000 + n
        if n in (0, 1, 4):
            want |= {"target.hint": 9, "target.kind": 2, "target.id": 0x50000 + n}
        if n in BUS_ATOMICS:
            want["operand"] = 0x11110000 + n
        if n == 0x07:
            want["swap"] = 0x22220000 + n
        if n in BUS_IMMEDIATE:
            want["imm"] = 0x44440000 + n
        if n == 0x05:
            want |= {"notify.addr": 0x55550000, "notify.token_id": 0x60000, "notify.token": 0x77770000}
        assert row == want


def test_acknowledgements_and_messages_of_the_unified_bus_are_read():
    acks = [row for row in bus_numbers("tp.opcode", "tp.psn", "status", "echo.marked", "echo.granted", "sack.max", "sack.psn", "ta.opcode")
            if row["tp.opcode"] not in (None, 1)]
    psn = 0x100080
    echo = {"echo.marked": 3, "echo.granted": 96}
    none = dict.fromkeys(acks[0])
    sack = lambda n: {"sack.max": n + 127, "sack.psn": [n + 1, n + 3, n + 127]}  # noqa: E731
    assert acks == [
        none | {"tp.opcode": 2, "tp.psn": psn, "status": 0},
        none | {"tp.opcode": 5, "tp.psn": psn, "status": 0} | sack(psn),
        none | {"tp.opcode": 3, "tp.psn": psn + 1, "status": 0} | echo,
        none | {"tp.opcode": 6, "tp.psn": psn + 1, "status": 0} | echo | sack(psn + 1),
        none | {"tp.opcode": 2, "tp.psn": 0x100090, "status": [5, 5], "ta.opcode": 0x11},
    ]
    carriers = [row for row in bus_numbers("tp.opcode", "ta.opcode", "ta.tassn", "ta.acked_psn", "ta.offset") if row["ta.acked_psn"]]
    assert [list(row.values()) for row in carriers] == [[1, 0x11, 10, 0x100095, None]]
    message = bus_numbers("next", "source", "dest", "cc.increase", "cc.hint", "sl", "tp_message.kind", "tp_message.mtu", "tp_message.tpn",
                          "tp_message.psn", "tp_message.incarnation")[-1]
    assert list(message.values()) == [3, 0x010203, 0x040506, 1, 5, 3, 1, 4096, 0x010203, 0x0A0B0C, 77]


def hello_pcap(path, answer, edit=lambda mad: None):
    """A hello by the table of docs/protocol.md, in a UD SEND to queue pair 1."""
    mad = bytearray(256)
    mad[0:4] = 1, 0x32, 1, 0x81 if answer else 0x01
    mad[8:16], mad[16:18], mad[37:40] = bytes(range(1, 9)), b"\x00\x10", b"BUR"
    mad[40:44], mad[44:52], mad[52:56], mad[56:60] = b"\x01\x05\x00\x40", bytes(range(0x11, 0x19)), bytes([0, 0, 0, 0b1101]), (2048).to_bytes(4, "big")
    text = b"dcqcn:rpg_ai_rate=100M"
    mad[60:62], mad[62:62 + len(text)] = bytes([1, len(text)]), text
    edit(mad)
    roce = bytes.fromhex("64007fff" "00000001" "00000007" "80010000" "00000001") + mad + bytes(4)
    udp = struct.pack(">HHHH", 49152, 4791, 8 + len(roce), 0) + roce
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])) + udp
    frame = bytes(12) + b"\x08\x00" + ip
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, 1) + struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


HELLO = "answer tid version mtu tail boot_id selective xrc read_acks uc_receipts window cc_rank cc".split()


def hello_fields(path):
    words = [word for name in ("_ws.malformed", *(f"burst_hello.{name}" for name in HELLO)) for word in ("-e", name)]
    malformed, *values = tshark("-T", "fields", "-E", "separator=|", *words, path=path).rstrip("\n").split("|")
    assert not malformed
    return dict(zip(HELLO, values, strict=True))


@pytest.mark.parametrize("answer", [False, True])
def test_hellos_are_read(tmp_path, answer):
    hello_pcap(tmp_path / "hello.pcap", answer)
    row = hello_fields(tmp_path / "hello.pcap")
    is_set = {name: row.pop(name) in ("1", "True") for name in ("answer", "selective", "xrc", "read_acks", "uc_receipts")}
    assert is_set == {"answer": answer, "selective": True, "xrc": False, "read_acks": True, "uc_receipts": True}
    assert row == {
        "tid": "0x0102030405060708", "version": "1", "mtu": "5", "tail": "64", "boot_id": "0x1112131415161718", "window": "2048",
        "cc_rank": "1", "cc": "dcqcn:rpg_ai_rate=100M",
    }
    assert "Hello answer" in tshark(path=tmp_path / "hello.pcap") or not answer


@pytest.mark.parametrize("at,value", [(1, 0x03), (37, 0), (17, 0x11)])
def test_other_management_datagrams_are_no_hellos(tmp_path, at, value):
    hello_pcap(tmp_path / "other.pcap", False, lambda mad: mad.__setitem__(at, value))
    assert not any(hello_fields(tmp_path / "other.pcap").values())


def test_a_hello_whose_text_says_it_is_longer_is_read_to_its_end(tmp_path):
    hello_pcap(tmp_path / "long.pcap", False, lambda mad: mad.__setitem__(61, 255))
    assert hello_fields(tmp_path / "long.pcap")["cc"].startswith("dcqcn")
