-- DDP over SCTP for Wireshark and tshark: RFC 5043, and the enhanced set-up of RFC 6581.
--
-- Wireshark knows the payload protocol identifiers 16 and 17 by name only. This shows what is
-- behind them: the DDP-SSN, session control with its private data, and DDP segments, which go to
-- Wireshark's own dissector for DDP and RDMAP (that of iWARP over TCP).
--
--   tshark -X lua_script:sctpddp.lua -r capture.pcapng
--
-- or copy it to a folder of personal Lua plugins (Help, About Wireshark, Folders). A Send's payload
-- can look like RPC over RDMA: --disable-heuristic rpcrdma_iwarp turns that guess off.

local names = {
	[1] = "Initiate",
	[2] = "Accept",
	[3] = "Reject",
	[4] = "Terminate",
	[5] = "Enhanced Initiate",
	[6] = "Enhanced Accept",
	[7] = "Enhanced Reject",
}

-- RFC 5043, section 5.2.2.
local segment = Proto("sctpddp_segment", "DDP over SCTP: DDP Segment")
-- RFC 5043, section 5.2.3.
local control = Proto("sctpddp", "DDP over SCTP: Stream Session Control")

local segment_ssn = ProtoField.uint16("sctpddp_segment.ssn", "DDP-SSN")
segment.fields = { segment_ssn }

local f = {
	ssn = ProtoField.uint16("sctpddp.ssn", "DDP-SSN"),
	func = ProtoField.uint16("sctpddp.function", "Function", base.HEX, names),
	block = ProtoField.uint32("sctpddp.enhanced", "Enhanced connection data", base.HEX),
	p2p = ProtoField.bool("sctpddp.a", "A: peer-to-peer", 32, nil, 0x80000000),
	send = ProtoField.bool("sctpddp.b", "B: ready to receive by a zero-length Send",
		32, nil, 0x40000000),
	ird = ProtoField.uint32("sctpddp.ird", "IRD", base.DEC, nil, 0x3fff0000),
	write = ProtoField.bool("sctpddp.c", "C: ready to receive by a zero-length RDMA Write",
		32, nil, 0x00008000),
	read = ProtoField.bool("sctpddp.d", "D: ready to receive by a zero-length RDMA Read",
		32, nil, 0x00004000),
	ord = ProtoField.uint32("sctpddp.ord", "ORD", base.DEC, nil, 0x00003fff),
	pd = ProtoField.bytes("sctpddp.private_data", "Private data"),
}
control.fields = { f.ssn, f.func, f.block, f.p2p, f.send, f.ird, f.write, f.read, f.ord, f.pd }

local short = ProtoExpert.new("sctpddp.short", "Too short for its headers",
	expert.group.MALFORMED, expert.severity.ERROR)
local unknown = ProtoExpert.new("sctpddp.unknown", "Unknown function",
	expert.group.PROTOCOL, expert.severity.ERROR)
local long = ProtoExpert.new("sctpddp.long", "More than 512 octets of private data",
	expert.group.PROTOCOL, expert.severity.ERROR)
local extra = ProtoExpert.new("sctpddp.extra", "A Terminate carries no private data",
	expert.group.PROTOCOL, expert.severity.WARN)
control.experts = { short, unknown, long, extra }
local segment_short = ProtoExpert.new("sctpddp_segment.short", "Too short for its headers",
	expert.group.MALFORMED, expert.severity.ERROR)
segment.experts = { segment_short }

-- several messages may share a packet: each adds to the Info column.
local function info(pinfo, text)
	pinfo.cols.protocol = "DDP/SCTP"
	pinfo.cols.info:append(" [" .. text .. "]")
end

function control.dissector(tvb, pinfo, tree)
	local t = tree:add(control, tvb())
	if tvb:len() < 4 then
		t:add_proto_expert_info(short)
		return tvb:len()
	end
	t:add(f.ssn, tvb(0, 2))
	t:add(f.func, tvb(2, 2))
	local func, n = tvb(2, 2):uint(), tvb:len() - 4
	local name = names[func]
	t:append_text(", " .. (name or "unknown function") .. ", DDP-SSN " .. tvb(0, 2):uint())
	info(pinfo, (name or "unknown function") .. " ssn=" .. tvb(0, 2):uint())
	if not name then
		t:add_proto_expert_info(unknown)
	end
	if func ~= 4 and n > 512 then
		t:add_proto_expert_info(long)
	end
	if func == 4 and n > 0 then
		t:add_proto_expert_info(extra)
	end
	local at = 4
	if func >= 5 and func <= 7 then
		if n >= 4 then
			-- RFC 6581, section 9
			local b = t:add(f.block, tvb(4, 4))
			for _, field in ipairs({ f.p2p, f.send, f.ird, f.write, f.read, f.ord }) do
				b:add(field, tvb(4, 4))
			end
			at = 8
		elseif func ~= 7 then
			t:add_proto_expert_info(short)
		end
	end
	if tvb:len() > at then
		t:add(f.pd, tvb(at))
	end
	return tvb:len()
end

local rdmap = Dissector.get("iwarp_ddp_rdmap")

function segment.dissector(tvb, pinfo, tree)
	local t = tree:add(segment, tvb(0, math.min(2, tvb:len())))
	local need = 2 + 18
	if tvb:len() > 2 and tvb(2, 1):uint() >= 0x80 then
		need = 2 + 14
	end
	if tvb:len() < need then
		t:add_proto_expert_info(segment_short)
		return tvb:len()
	end
	t:add(segment_ssn, tvb(0, 2))
	t:append_text(", DDP-SSN " .. tvb(0, 2):uint())
	local text = tostring(pinfo.cols.info)
	rdmap:call(tvb(2):tvb(), pinfo, tree)
	-- It writes over the column; what was there comes back.
	local own = tostring(pinfo.cols.info)
	if own ~= text then
		pinfo.cols.info = text
	end
	info(pinfo, "segment ssn=" .. tvb(0, 2):uint())
	return tvb:len()
end

local ppi = DissectorTable.get("sctp.ppi")
ppi:add(16, segment)
ppi:add(17, control)
