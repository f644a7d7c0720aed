-- Wireshark dissectors of Burst's selective repeat family (docs/protocol.md), RoCEv2 packets, UDP port 4791, whose BTH opcode is
-- 0xC0 or above, and of its hellos, management datagrams by which two Burst hosts tell each other what they can do. Every other packet
-- of that port goes to Wireshark's own InfiniBand dissector, as without this script; so do hellos, for their headers.
--
-- Use it once:     wireshark -X lua_script:burst.lua        tshark -X lua_script:burst.lua -r file.pcap
-- Install it:      copy it to ~/.local/lib/wireshark/plugins (Help, About Wireshark, Folders shows the place)
-- Filter examples: burst_sr.opcode == 0xd1 && burst_sr.words > 0      burst_sr.xn > 0      burst_sr.repair
--                  burst_hello      burst_hello.answer && !burst_hello.selective

local ROCE_PORT = 4791
local FIRST_OPCODE = 0xC0

local burst = Proto("burst_sr", "Burst selective repeat")
local f = burst.fields

local names = {
    [0] = "SEND First", "SEND Middle", "SEND Last", "SEND Last with Immediate", "SEND Only", "SEND Only with Immediate",
    "RDMA WRITE First", "RDMA WRITE Middle", "RDMA WRITE Last", "RDMA WRITE Last with Immediate", "RDMA WRITE Only",
    "RDMA WRITE Only with Immediate", "RDMA READ Request", "RDMA READ Response First", "RDMA READ Response Middle",
    "RDMA READ Response Last", "RDMA READ Response Only", "Acknowledge", "ATOMIC Acknowledge", "CmpSwap", "FetchAdd",
    "RDMA READ Acknowledge", "SEND Last with Invalidate", "SEND Only with Invalidate", "Probe",
}

-- What follows the BTH, by the low five bits of the opcode. Requests of the XRC half have an XRCETH in front.
local layouts = {}
for low = 0x00, 0x05 do layouts[low] = { "seth", "data", request = true } end
for low = 0x06, 0x0B do layouts[low] = { "seth", "weth", "data", request = true } end
layouts[0x0C] = { "seth", "reth", request = true }
for low = 0x0D, 0x10 do layouts[low] = { "seth", "data", response = true } end
layouts[0x11] = { "aeth", "saeth", "bitmap" }
layouts[0x12] = { "seth", "aeth", "atomicack" }
layouts[0x13] = { "seth", "atomic", request = true }
layouts[0x14] = { "seth", "atomic", request = true }
layouts[0x15] = { "saeth" }
layouts[0x16] = { "seth", "ieth", "data", request = true }
layouts[0x17] = { "seth", "ieth", "data", request = true }
layouts[0x18] = { "seth" }
-- Of UC: no form of XRC.
layouts[0x19] = { "aeth", "saeth" }
layouts[0x1A] = {}
-- Immediate data stands behind all other headers.
for _, low in ipairs({ 0x03, 0x05, 0x09, 0x0B }) do
    table.insert(layouts[low], #layouts[low], "imm")
end

local opcode_names = {}
for low, name in pairs(names) do
    opcode_names[0xC0 + low] = "RC-SR " .. name
    opcode_names[0xE0 + low] = "XRC-SR " .. name
end
opcode_names[0xD9] = "UC Receipt"
opcode_names[0xDA] = "UC Probe"

f.opcode = ProtoField.uint8("burst_sr.opcode", "Opcode", base.HEX, opcode_names)
f.solicited = ProtoField.bool("burst_sr.solicited", "Solicited event", 8, nil, 0x80)
f.pad = ProtoField.uint8("burst_sr.pad", "Pad count", base.DEC, nil, 0x30)
f.pkey = ProtoField.uint16("burst_sr.pkey", "Partition key", base.HEX)
f.fecn = ProtoField.bool("burst_sr.fecn", "FECN", 8, nil, 0x80)
f.becn = ProtoField.bool("burst_sr.becn", "BECN", 8, nil, 0x40)
f.qpn = ProtoField.uint24("burst_sr.qpn", "Destination queue pair", base.HEX)
f.ackreq = ProtoField.bool("burst_sr.ackreq", "Acknowledge request", 8, nil, 0x80)
f.psn = ProtoField.uint24("burst_sr.psn", "PSN", base.DEC)
f.srqn = ProtoField.uint24("burst_sr.srqn", "XRC SRQ number", base.HEX)
f.version = ProtoField.uint8("burst_sr.version", "Version", base.DEC, nil, 0xC0)
f.probe = ProtoField.bool("burst_sr.probe", "Tail probe (P)", 8, nil, 0x20)
f.repair = ProtoField.bool("burst_sr.repair", "Repair of a READ (A)", 8, nil, 0x10)
f.xn = ProtoField.uint8("burst_sr.xn", "Transmission number", base.DEC, nil, 0x0F)
f.rsn = ProtoField.uint24("burst_sr.rsn", "Receives consumed before (RSN)", base.DEC)
f.msn = ProtoField.uint24("burst_sr.msn", "Message sequence number", base.DEC)
f.lane = ProtoField.uint8("burst_sr.lane", "Lane", base.DEC)
f.poff = ProtoField.uint24("burst_sr.poff", "Index of the packet in its message", base.DEC)
f.addr = ProtoField.uint64("burst_sr.addr", "Virtual address", base.HEX)
f.rkey = ProtoField.uint32("burst_sr.rkey", "Remote key", base.HEX)
f.length = ProtoField.uint32("burst_sr.length", "DMA length", base.DEC)
f.swap = ProtoField.uint64("burst_sr.swap", "Swap (or add) data", base.HEX)
f.compare = ProtoField.uint64("burst_sr.compare", "Compare data", base.HEX)
f.original = ProtoField.uint64("burst_sr.original", "Original value", base.HEX)
f.imm = ProtoField.uint32("burst_sr.imm", "Immediate data", base.HEX)
f.invalidate = ProtoField.uint32("burst_sr.invalidate", "Key to invalidate", base.HEX)
f.syndrome = ProtoField.uint8("burst_sr.syndrome", "Syndrome", base.HEX)
f.pressure = ProtoField.uint8("burst_sr.pressure", "Host pressure (R)", base.DEC,
    { [0] = "none", "buffer over half full", "buffer over three quarters full", "packets lost" }, 0x60)
f.ce = ProtoField.bool("burst_sr.ce", "Congestion experienced (E)", 8, nil, 0x10)
f.words = ProtoField.uint8("burst_sr.words", "Words of the bitmap (W)", base.DEC, nil, 0x0F)
f.trigger = ProtoField.uint24("burst_sr.trigger", "PSN of the newest packet (TRIG)", base.DEC)
f.delay = ProtoField.uint16("burst_sr.delay", "Delay, units of 64 ns", base.DEC)
f.ce_packets = ProtoField.uint16("burst_sr.ce_packets", "Packets with congestion experienced", base.DEC)
f.received = ProtoField.uint16("burst_sr.received", "Packets received", base.DEC)
f.trigger_xn = ProtoField.uint8("burst_sr.trigger_xn", "Transmission number of the newest packet", base.DEC, nil, 0xF0)
f.bitmap = ProtoField.bytes("burst_sr.bitmap", "Bitmap")
f.sacked = ProtoField.uint24("burst_sr.sacked", "Received PSN", base.DEC)
f.payload = ProtoField.bytes("burst_sr.payload", "Payload")
f.padding = ProtoField.bytes("burst_sr.padding", "Padding")
f.icrc = ProtoField.uint32("burst_sr.icrc", "Invariant CRC", base.HEX)

burst.experts.short = ProtoExpert.new("burst_sr.short", "The packet is shorter than its headers say",
    expert.group.MALFORMED, expert.severity.ERROR)
burst.experts.bitmap = ProtoExpert.new("burst_sr.bad_bitmap", "The bitmap is not as long as the header says",
    expert.group.MALFORMED, expert.severity.ERROR)

local sizes = { seth = 8, weth = 12, reth = 16, atomic = 28, atomicack = 8, aeth = 4, saeth = 12, imm = 4, ieth = 4, xrceth = 4 }

local add = {}
function add.xrceth(tree, b)
    tree:add(burst, b, "XRC extended transport header"):add(f.srqn, b(1, 3))
end
function add.seth(tree, b, layout)
    local t = tree:add(burst, b, "Selective repeat header (SETH)")
    for _, field in ipairs({ f.version, f.probe, f.repair, f.xn }) do t:add(field, b(0, 1)) end
    t:add(layout.response and f.msn or f.rsn, b(1, 3))
    t:add(f.lane, b(4, 1))
    t:add(f.poff, b(5, 3))
end
function add.weth(tree, b)
    local t = tree:add(burst, b, "Write header (WETH)")
    t:add(f.addr, b(0, 8))
    t:add(f.rkey, b(8, 4))
end
function add.reth(tree, b)
    local t = tree:add(burst, b, "RDMA extended transport header (RETH)")
    t:add(f.addr, b(0, 8))
    t:add(f.rkey, b(8, 4))
    t:add(f.length, b(12, 4))
end
function add.atomic(tree, b)
    local t = tree:add(burst, b, "Atomic extended transport header (AtomicETH)")
    t:add(f.addr, b(0, 8))
    t:add(f.rkey, b(8, 4))
    t:add(f.swap, b(12, 8))
    t:add(f.compare, b(20, 8))
end
function add.atomicack(tree, b)
    tree:add(burst, b, "Atomic acknowledge extended transport header"):add(f.original, b(0, 8))
end
function add.aeth(tree, b)
    local t = tree:add(burst, b, "Acknowledge extended transport header (AETH)")
    t:add(f.syndrome, b(0, 1))
    t:add(f.msn, b(1, 3))
end
function add.saeth(tree, b)
    local t = tree:add(burst, b, "Selective acknowledgement header (SAETH)")
    for _, field in ipairs({ f.pressure, f.ce, f.words }) do t:add(field, b(0, 1)) end
    t:add(f.trigger, b(1, 3))
    t:add(f.delay, b(4, 2))
    t:add(f.ce_packets, b(6, 2))
    t:add(f.received, b(8, 2))
    t:add(f.trigger_xn, b(10, 1))
end
function add.imm(tree, b)
    tree:add(f.imm, b)
end
function add.ieth(tree, b)
    tree:add(f.invalidate, b)
end

local function add_bth(tree, b)
    local t = tree:add(burst, b, "Base transport header (BTH)")
    t:add(f.opcode, b(0, 1))
    t:add(f.solicited, b(1, 1))
    t:add(f.pad, b(1, 1))
    t:add(f.pkey, b(2, 2))
    t:add(f.fecn, b(4, 1))
    t:add(f.becn, b(4, 1))
    t:add(f.qpn, b(5, 3))
    t:add(f.ackreq, b(8, 1))
    t:add(f.psn, b(9, 3))
end

-- The PSNs that a bitmap reports: bit 0 of byte 0 is the second PSN after the acknowledged one.
local function add_bitmap(tree, b, acknowledged)
    local t = tree:add(f.bitmap, b)
    for at = 0, b:len() - 1 do
        local octet = b(at, 1):uint()
        for bit = 0, 7 do
            if math.floor(octet / 2 ^ bit) % 2 == 1 then
                t:add(f.sacked, b(at, 1), (acknowledged + 2 + 8 * at + bit) % 2 ^ 24)
            end
        end
    end
end

local function dissect(b, pinfo, root)
    local opcode = b(0, 1):uint()
    local layout = layouts[opcode % 0x20]
    local tree = root:add(burst, b(), "Burst selective repeat, " .. (opcode_names[opcode] or "unknown opcode"))
    pinfo.cols.protocol = "Burst SR"
    if not layout or b:len() < 16 then
        tree:add_proto_expert_info(burst.experts.short)
        return
    end
    add_bth(tree, b(0, 12))
    local psn, pad = b(9, 3):uint(), math.floor(b(1, 1):uint() / 16) % 4
    pinfo.cols.info = string.format("%s QP=0x%06x PSN=%d", opcode_names[opcode], b(5, 3):uint(), psn)
    local at, stop = 12, b:len() - 4
    local headers = {}
    if opcode >= 0xE0 and layout.request then table.insert(headers, "xrceth") end
    for _, name in ipairs(layout) do
        if sizes[name] then table.insert(headers, name) end
    end
    local words
    for _, name in ipairs(headers) do
        if at + sizes[name] > stop then
            tree:add_proto_expert_info(burst.experts.short)
            return
        end
        add[name](tree, b(at, sizes[name]), layout)
        if name == "saeth" then words = b(at, 1):uint() % 16 end
        at = at + sizes[name]
    end
    if stop - at < pad or words and stop - at ~= 8 * words then
        tree:add_proto_expert_info(words and burst.experts.bitmap or burst.experts.short)
        return
    end
    if words and words > 0 then
        pinfo.cols.info:append(" selective")
        add_bitmap(tree, b(at, stop - at), psn)
    elseif stop - pad > at then
        tree:add(f.payload, b(at, stop - pad - at))
    end
    if pad > 0 then tree:add(f.padding, b(stop - pad, pad)) end
    tree:add(f.icrc, b(stop, 4))
end

-- Hellos: MADs of a vendor class with Burst's OUI, in UD SEND packets to queue pair 1, behind BTH and DETH.
local UD_SEND, MAD_AT, MAD_LEN = 0x64, 20, 256
local HELLO_CLASS, HELLO_OUI, HELLO_ATTRIBUTE, GET_RESP = 0x32, 0x425552, 0x0010, 0x81

local hello = Proto("burst_hello", "Burst hello")
local h = hello.fields
h.answer = ProtoField.bool("burst_hello.answer", "Answer")
h.tid = ProtoField.uint64("burst_hello.tid", "Transaction id", base.HEX)
h.version = ProtoField.uint8("burst_hello.version", "Version", base.DEC)
h.mtu = ProtoField.uint8("burst_hello.mtu", "MTU of the port", base.DEC,
    { [1] = "256 bytes", [2] = "512 bytes", [3] = "1024 bytes", [4] = "2048 bytes", [5] = "4096 bytes" })
h.tail = ProtoField.uint16("burst_hello.tail", "Last bytes of a WRITE written in their turn", base.DEC)
h.boot_id = ProtoField.uint64("burst_hello.boot_id", "Boot id", base.HEX)
h.selective = ProtoField.bool("burst_hello.selective", "Selective repeat on RC", 32, nil, 0x1)
h.xrc = ProtoField.bool("burst_hello.xrc", "Selective repeat on XRC", 32, nil, 0x2)
h.read_acks = ProtoField.bool("burst_hello.read_acks", "READ responses are acknowledged", 32, nil, 0x4)
h.uc_receipts = ProtoField.bool("burst_hello.uc_receipts", "Receipts of UC", 32, nil, 0x8)
h.window = ProtoField.uint32("burst_hello.window", "PSNs that the receiver keeps track of", base.DEC)
h.cc_rank = ProtoField.uint8("burst_hello.cc_rank", "Congestion control chosen by", base.DEC,
    { [0] = "no one", [1] = "the configuration", [2] = "a command" })
h.cc = ProtoField.string("burst_hello.cc", "Congestion control")

local function is_hello(b)
    return b:len() >= MAD_AT + MAD_LEN and b(0, 1):uint() == UD_SEND and b(5, 3):uint() == 1
        and b(MAD_AT + 1, 1):uint() == HELLO_CLASS and b(MAD_AT + 37, 3):uint() == HELLO_OUI
        and b(MAD_AT + 16, 2):uint() == HELLO_ATTRIBUTE
end

local function dissect_hello(b, pinfo, root)
    local is_answer = b(3, 1):uint() == GET_RESP
    local kind = is_answer and "answer" or "question"
    local tree = root:add(hello, b(), "Burst hello, " .. kind)
    tree:add(h.answer, b(3, 1), is_answer)
    tree:add(h.tid, b(8, 8))
    local data = b(40)
    for at, field in pairs({ [0] = h.version, [1] = h.mtu }) do tree:add(field, data(at, 1)) end
    tree:add(h.tail, data(2, 2))
    tree:add(h.boot_id, data(4, 8))
    for _, field in ipairs({ h.selective, h.xrc, h.read_acks, h.uc_receipts }) do tree:add(field, data(12, 4)) end
    tree:add(h.window, data(16, 4))
    tree:add(h.cc_rank, data(20, 1))
    local len = math.min(data(21, 1):uint(), data:len() - 22)
    if len > 0 then tree:add(h.cc, data(22, len)) end
    pinfo.cols.protocol = "Burst hello"
    pinfo.cols.info = string.format("Hello %s, boot id %s", kind, tostring(data(4, 8):bytes()))
end

local udp_ports = DissectorTable.get("udp.port")
local infiniband = udp_ports:get_dissector(ROCE_PORT)

function burst.dissector(b, pinfo, root)
    if b:len() > 0 and b(0, 1):uint() >= FIRST_OPCODE then
        dissect(b, pinfo, root)
        return
    end
    if infiniband then infiniband:call(b, pinfo, root) end
    if is_hello(b) then dissect_hello(b(MAD_AT, MAD_LEN):tvb(), pinfo, root) end
end

udp_ports:set(ROCE_PORT, burst)
