-- Wireshark dissector of the Unified Bus in UDP as Burst writes it (docs/urma.md): UDP port 4792.
--
-- Use it once:     wireshark -X lua_script:unified_bus.lua        tshark -X lua_script:unified_bus.lua -r file.pcap
-- Install it:      copy it to ~/.local/lib/wireshark/plugins (Help, About Wireshark, Folders shows the place)
-- Filter examples: ub.tp.opcode == 5      ub.ta.opcode == 3 && ub.ta.tassn == 7      ub.status == 3      ub.cc.congested

local UB_PORT = 4792
local bus = Proto("ub", "Unified Bus")
local f = bus.fields

local layers = { [1] = "Bypass", [2] = "Reliable", [3] = "Unreliable" }
local tp_names = { [1] = "Data", [2] = "Ack", [3] = "Ack with congestion", [5] = "Sack", [6] = "Sack with congestion" }
local ta_names = {
    [0x00] = "SEND", [0x01] = "SEND with immediate", [0x03] = "WRITE", [0x04] = "WRITE with immediate",
    [0x05] = "WRITE with notification", [0x06] = "READ", [0x07] = "CAS", [0x08] = "Swap", [0x0B] = "Fetch and add",
    [0x0C] = "Fetch and subtract", [0x0D] = "Fetch and and", [0x0E] = "Fetch and or", [0x0F] = "Fetch and exclusive or",
    [0x10] = "Management", [0x11] = "TAACK", [0x12] = "READ response", [0x13] = "Atomic response",
    [0x16] = "Disconnect sequence context",
}
local statuses = { [0] = "executed", [1] = "not ready", [2] = "page fault", [3] = "refused", [5] = "fused" }
local orders = { [0] = "NO", [1] = "RO", [2] = "SO", [3] = "SO" }
local modes = { [0] = "ROI", [1] = "ROT", [2] = "ROL", [3] = "UNO" }
local kinds = { [0] = "JFR", [1] = "Jetty", [2] = "Jetty group" }

local function field(name, kind, title, ...)
    local key = name:gsub("%.", "_")
    f[key] = ProtoField[kind]("ub." .. name, title, ...)
end
field("source", "uint24", "Source CNA", base.HEX)
field("dest", "uint24", "Destination CNA", base.HEX)
field("cc.enable", "bool", "C-AQM", 16, nil, 0x0400)
field("cc.congested", "bool", "Congested (C)", 16, nil, 0x0200)
field("cc.increase", "bool", "Increase (I)", 16, nil, 0x0100)
field("cc.hint", "uint16", "Hint (32 bytes each)", base.DEC, nil, 0x00FF)
field("balance", "uint8", "Load-balance factor", base.HEX)
field("sl", "uint8", "Service level", base.DEC, nil, 0xF0)
field("next", "uint8", "Next layer", base.DEC, layers, 0x07)
field("tp.last", "bool", "Last packet", 8, nil, 0x80)
field("tp.opcode", "uint8", "TP opcode", base.DEC, tp_names, 0x7F)
field("tp.source", "uint24", "Source TPN", base.HEX)
field("tp.dest", "uint24", "Destination TPN", base.HEX)
field("tp.ackreq", "bool", "Acknowledge request", 8, nil, 0x80)
field("tp.psn", "uint24", "PSN", base.DEC)
field("tp.msn", "uint24", "TPMSN", base.DEC)
field("status", "uint8", "Status", base.DEC, statuses, 0xE0)
field("info", "uint8", "Status information", base.DEC, nil, 0x1F)
field("echo.bytes", "uint32", "Acknowledged bytes", base.DEC)
field("echo.increase", "bool", "Increase granted", 8, nil, 0x01)
field("echo.marked", "uint8", "Marked packets", base.DEC)
field("echo.granted", "uint16", "Granted bytes", base.DEC)
field("sack.max", "uint24", "Greatest PSN", base.DEC)
field("sack.bits", "uint16", "Bits", base.DEC)
field("sack.psn", "uint24", "Received PSN", base.DEC)
field("ta.opcode", "uint8", "TA opcode", base.HEX, ta_names)
field("ta.tassn", "uint16", "TASSN", base.DEC)
field("ta.poison", "bool", "Poison", 8, nil, 0x04)
field("ta.granted", "bool", "Sequence context granted", 8, nil, 0x08)
field("ta.completion_order", "bool", "Completions in order", 8, nil, 0x40)
field("ta.order", "uint8", "Order", base.DEC, orders, 0x30)
field("ta.retry", "bool", "Sent again", 8, nil, 0x02)
field("ta.alloc", "bool", "Asks for a sequence context", 8, nil, 0x01)
field("ta.rc_type", "uint8", "RC type", base.DEC, { [0] = "queue", [2] = "sequence context" }, 0x60)
field("ta.mode", "uint8", "Service mode", base.DEC, modes, 0x03)
field("ta.context", "uint16", "Sequence context", base.DEC)
field("ta.jetty", "uint24", "Requester's Jetty", base.DEC, nil, 0x0FFFFF)
field("ta.number", "uint16", "Order number", base.DEC)
field("ta.offset", "uint24", "Payload offset", base.DEC)
field("ta.acknowledges", "bool", "Acknowledges packets", 8, nil, 0x80)
field("ta.acked_psn", "uint24", "Acknowledged PSN", base.DEC)
field("addr", "uint64", "Address", base.HEX)
field("token_id", "uint32", "Token id", base.HEX, nil, 0x000FFFFF)
field("length", "uint32", "Bytes of the message", base.DEC)
field("token", "uint32", "Token", base.HEX)
field("target.hint", "uint8", "Hint", base.DEC)
field("target.kind", "uint8", "Kind of target", base.DEC, kinds, 0xC0)
field("target.id", "uint24", "Target", base.DEC, nil, 0x0FFFFF)
field("operand", "uint64", "Operand", base.HEX)
field("swap", "uint64", "Swap value", base.HEX)
field("imm", "uint64", "Immediate data", base.HEX)
field("notify.addr", "uint64", "Notification address", base.HEX)
field("notify.token_id", "uint32", "Notification token id", base.HEX, nil, 0x000FFFFF)
field("notify.token", "uint32", "Notification token", base.HEX)
field("tp_message.kind", "uint8", "Kind", base.DEC, { [1] = "REQUEST", [2] = "REPLY", [3] = "CHALLENGE", [4] = "END", [5] = "UNKNOWN" })
field("tp_message.mtu", "uint16", "MTU", base.DEC)
field("tp_message.tpn", "uint24", "TPN", base.HEX)
field("tp_message.psn", "uint24", "First PSN", base.DEC)
field("tp_message.incarnation", "uint64", "Incarnation", base.DEC)
field("payload", "bytes", "Payload")
field("crc", "uint32", "CRC-32", base.HEX)

bus.experts = { short = ProtoExpert.new("ub.short", "The packet is too short", expert.group.MALFORMED, expert.severity.ERROR) }

local MEMORY = { [0x03] = true, [0x04] = true, [0x05] = true, [0x06] = true, [0x07] = true, [0x08] = true }
for opcode = 0x0B, 0x0F do MEMORY[opcode] = true end
local RESPONSES = { [0x11] = true, [0x12] = true, [0x13] = true }
local IMMEDIATE = { [0x01] = true, [0x04] = true, [0x05] = true }

-- A cursor over the packet: take(n) gives the next n bytes, or nil and a note.
local function cursor(b, stop, tree)
    local at = 0
    return function(n)
        if at + n > stop then
            tree:add_proto_expert_info(bus.experts.short)
            return nil
        end
        at = at + n
        return b(at - n, n), at
    end, function() return at end
end

local function bit_at(range, mask) return math.floor(range:uint() / mask) % 2 == 1 end

local function network(tree, r)
    tree:add(f.source, r(1, 3))
    tree:add(f.dest, r(4, 3))
    for _, key in ipairs({ "cc_enable", "cc_congested", "cc_increase", "cc_hint" }) do tree:add(f[key], r(7, 2)) end
    tree:add(f.balance, r(9, 1))
    tree:add(f.sl, r(10, 1))
    tree:add(f.next, r(10, 1))
    return r(10, 1):uint() % 8
end

local function transport(tree, r)
    tree:add(f.tp_last, r(0, 1))
    tree:add(f.tp_opcode, r(0, 1))
    tree:add(f.tp_source, r(2, 3))
    tree:add(f.tp_dest, r(5, 3))
    tree:add(f.tp_ackreq, r(8, 1))
    tree:add(f.tp_psn, r(9, 3))
    if r(0, 1):uint() % 128 ~= 1 then
        tree:add(f.status, r(12, 1))
        tree:add(f.info, r(12, 1))
    end
    tree:add(f.tp_msn, r(13, 3))
    return r(0, 1):uint() % 128, r(9, 3):uint(), math.floor(r(12, 1):uint() / 32)
end

local function acknowledgement(tree, take, opcode, psn)
    if opcode == 3 or opcode == 6 then
        local r = take(8)
        if not r then return false end
        tree:add(f.echo_bytes, r(0, 4))
        tree:add(f.echo_increase, r(4, 1))
        tree:add(f.echo_marked, r(5, 1))
        tree:add(f.echo_granted, r(6, 2))
    end
    if opcode == 5 or opcode == 6 then
        local r = take(4)
        if not r then return false end
        local bits = 64 * 2 ^ math.min(r(0, 1):uint(), 4)
        tree:add(f.sack_max, r(1, 3))
        tree:add(f.sack_bits, r(0, 1), bits)
        local map = take(bits / 8)
        if not map then return false end
        for i = 0, bits - 1 do
            local byte = map(math.floor(i / 8), 1)
            if bit_at(byte, 2 ^ (i % 8)) then tree:add(f.sack_psn, byte, (psn + i) % 0x1000000) end
        end
    end
    return true
end

local function transaction(tree, take)
    local r = take(16)
    if not r then return nil end
    local opcode = r(0, 1):uint()
    tree:add(f.ta_opcode, r(0, 1))
    tree:add(f.ta_poison, r(1, 1))
    tree:add(f.ta_tassn, r(2, 2))
    if RESPONSES[opcode] then
        tree:add(f.ta_granted, r(1, 1))
        tree:add(f.status, r(4, 1))
        tree:add(f.info, r(4, 1))
    else
        for _, key in ipairs({ "ta_completion_order", "ta_order", "ta_retry", "ta_alloc" }) do tree:add(f[key], r(4, 1)) end
        tree:add(f.ta_number, r(11, 2))
    end
    tree:add(f.ta_rc_type, r(5, 1))
    tree:add(f.ta_mode, r(5, 1))
    tree:add(f.ta_context, r(6, 2))
    tree:add(f.ta_jetty, r(8, 3))
    if opcode == 0x11 and bit_at(r(12, 1), 0x80) then
        tree:add(f.ta_acknowledges, r(12, 1))
        tree:add(f.ta_acked_psn, r(13, 3))
    else
        tree:add(f.ta_offset, r(13, 3))
    end
    if RESPONSES[opcode] then return opcode end
    local has_token, has_target = bit_at(r(1, 1), 8), bit_at(r(4, 1), 8) or opcode <= 1
    if MEMORY[opcode] then
        r = take(16)
        if not r then return nil end
        tree:add(f.addr, r(0, 8))
        tree:add(f.token_id, r(8, 4))
        tree:add(f.length, r(12, 4))
    end
    if has_token then
        r = take(4)
        if not r then return nil end
        tree:add(f.token, r)
    end
    if has_target then
        r = take(4)
        if not r then return nil end
        tree:add(f.target_hint, r(0, 1))
        tree:add(f.target_kind, r(1, 1))
        tree:add(f.target_id, r(1, 3))
    end
    if MEMORY[opcode] and opcode >= 0x07 then
        r = take(opcode == 0x07 and 16 or 8)
        if not r then return nil end
        tree:add(f.operand, r(0, 8))
        if opcode == 0x07 then tree:add(f.swap, r(8, 8)) end
    end
    if IMMEDIATE[opcode] then
        r = take(8)
        if not r then return nil end
        tree:add(f.imm, r)
    end
    if opcode == 0x05 then
        r = take(16)
        if not r then return nil end
        tree:add(f.notify_addr, r(0, 8))
        tree:add(f.notify_token_id, r(8, 4))
        if bit_at(r(8, 1), 0x80) then tree:add(f.notify_token, r(12, 4)) end
    end
    return opcode
end

local function management(tree, r)
    tree:add(f.tp_message_kind, r(0, 1))
    tree:add(f.tp_message_mtu, r(2, 2))
    tree:add(f.tp_message_tpn, r(4, 3))
    tree:add(f.tp_message_psn, r(7, 3))
    tree:add(f.tp_message_incarnation, r(16, 8))
end

function bus.dissector(b, pinfo, root)
    pinfo.cols.protocol = "UB"
    local tree = root:add(bus, b())
    if b:len() < 4 then return tree:add_proto_expert_info(bus.experts.short) end
    local stop = b:len() - 4
    local take, position = cursor(b, stop, tree)
    local r = take(12)
    local layer = r and network(tree, r)
    local opcode, psn, status
    if layer == 2 or layer == 3 then
        r = take(16)
        if not r then return end
    end
    if layer == 2 then
        opcode, psn, status = transport(tree, r)
        pinfo.cols.info = (tp_names[opcode] or "?") .. " PSN " .. psn
        if not acknowledgement(tree, take, opcode, psn) then return end
    end
    local ta
    if layer and (opcode == nil or opcode == 1 or status == 5) then
        ta = transaction(tree, take)
        if not ta then return end
        pinfo.cols.info = (ta_names[ta] or "?") .. (psn and " PSN " .. psn or "")
    end
    local at = position()
    if ta == 0x10 and stop - at >= 32 then
        management(tree, b(at, stop - at))
    elseif stop > at then
        tree:add(f.payload, b(at, stop - at))
    end
    tree:add_le(f.crc, b(stop, 4))
end

DissectorTable.get("udp.port"):set(UB_PORT, bus)
