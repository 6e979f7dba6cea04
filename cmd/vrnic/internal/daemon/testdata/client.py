#!/usr/bin/env python3
"""client.py DOCUMENT SOCKET ADDRESS: a client that knows what docs/abi.md says, and nothing else.

Operations, structs and offsets are read from the tables of DOCUMENT. It connects two QPs of one
device by its IPv4 ADDRESS, moves data by Send, RDMA Write and RDMA Read, waits for events, and ends
with a line "ok". Read-modify-writes are not atomic here, and fences are missing: the client has one
thread and is slow, and a bell too many only costs a look.
"""

import array
import fcntl
import mmap
import os
import re
import socket
import struct
import sys

DOC = open(sys.argv[1], encoding="utf-8").read()
FORMATS = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int32": "i"}


def rows(pattern):
    return re.findall(pattern, DOC, re.M)


# name: number, struct of the request, struct of the reply
OPS = {name: (int(n), req, rep) for n, name, req, rep in
       rows(r"^\| (\d+) \| ([A-Z_]+) \| (\w+)[^|]* \| ([\w-]+) \|")}
OFF = {name: int(n) for n, name in rows(r"^\| (\d+) \| *\w* *\| `(\w+)` \|")}
BITS = {name: int(n) for name, n in rows(r"`((?:SQ|Arm)[A-Z]\w+)` (\d+)") if name not in OFF}
SIZES, FIELDS = {}, {}  # of structs; fields by name: offset, type
for struct_, size, offset, type_, field in rows(
        r"^\| ?(\w*) ?\| ?(\d*) ?\| (\d+) \| (\S+) \| (\w+) \|"):
    if struct_:
        of = struct_
        SIZES[of], FIELDS[of] = int(size), {}
    FIELDS[of][field] = int(offset), type_


def put(b, name, base, values):
    for field, v in values.items():
        offset, type_ = FIELDS[name][field]
        if type_ in FORMATS:
            struct.pack_into("<" + FORMATS[type_], b, base + offset, v)
        elif isinstance(v, dict):
            put(b, type_, base + offset, v)
        else:
            b[base + offset:base + offset + len(v)] = v


class Reply:
    def __init__(self, name, body, fds):
        self.name, self.body, self.fds = name, body, fds

    def __getattr__(self, field):
        offset, type_ = FIELDS[self.name][field]
        return struct.unpack_from("<" + FORMATS[type_], self.body, offset)[0]


class Session:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.seq = 0

    def call(self, op, fd=None, **values):
        number, req, rep = OPS[op]
        body = bytearray(SIZES.get(req, 0))
        if body:
            put(body, req, 0, values)
        self.seq += 1
        rights = [] if fd is None else [
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        head = struct.pack("<HHIiI", number, 0, self.seq, 0, len(body))
        self.socket.sendmsg([head + bytes(body)], rights)
        data, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(8))
        got, _, seq, status, length = struct.unpack_from("<HHIiI", data)
        assert (got, seq, length) == (number, self.seq, len(data) - 16), op
        if status != 0:
            raise OSError(-status, os.strerror(-status), op)
        fds = array.array("i")
        for _, _, octets in control:
            fds.frombytes(octets)
        data = data[16:]
        if rep != "-":
            # HELLO says minor version 0: what structs have had since is left out.
            assert len(data) <= SIZES[rep], op
            data += bytes(SIZES[rep] - len(data))
        return Reply(rep, data, list(fds))


class Shared:
    """A memfd of the daemon's, as words."""

    def __init__(self, fd, magic):
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        self.mem = mmap.mmap(fd, os.fstat(fd).st_size)
        assert self.mem[:4] == magic, magic

    def load(self, where):
        return struct.unpack_from("<I", self.mem, OFF.get(where, where))[0]

    def store(self, where, v):
        struct.pack_into("<I", self.mem, OFF.get(where, where), v & 0xffffffff)

    def slot(self, index, offset, size, stride):
        return self.load(offset) + (index & (self.load(size) - 1)) * stride


s = Session(sys.argv[2])
hello = s.call("HELLO", Magic=0x484e5256, Major=1, Comm=b"document")
page, doorbell = Shared(hello.fds[0], b"VRNS"), hello.fds[1]
ctx = s.call("CTX_OPEN").Ctx
pd = s.call("ALLOC_PD", Ctx=ctx).PD

memory = os.memfd_create("document", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(memory, 65536)
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
buf = mmap.mmap(memory, 65536)
lent = s.call("ADD_MEM", fd=memory).Mem
key = s.call("REG_MR", PD=pd, Access=1 | 2 | 4, Length=65536, Mode=1, Mem=lent).LKey

chan = s.call("CREATE_CHAN", Ctx=ctx)
pipe, ring = chan.fds[0], Shared(chan.fds[1], b"VRNE")
cqs = {}  # by handle


def create_cq():
    r = s.call("CREATE_CQ", Ctx=ctx, CQE=16, Chan=chan.Chan)
    cqs[r.CQ] = Shared(r.fds[0], b"VRNC")
    return r.CQ


class QP:
    def __init__(self):
        self.cq = create_cq()
        caps = dict(MaxSendWR=4, MaxRecvWR=4, MaxSendSGE=1, MaxRecvSGE=1)
        r = s.call("CREATE_QP", PD=pd, SendCQ=self.cq, RecvCQ=self.cq, Caps=caps)
        self.handle, self.number, self.bell = r.QP, r.QPN, r.Bell
        self.mem = Shared(r.fds[0], b"VRNQ")

    def ring(self):
        word = page.load("SessBellOff") + 4 * (self.bell >> 5)
        page.store(word, page.load(word) | 1 << (self.bell & 31))
        if page.load("SessSleeping"):
            page.store("SessSleeping", 0)
            os.write(doorbell, struct.pack("<Q", 1))

    def sge(self, at, addr, n):
        put_at = self.mem.mem
        struct.pack_into("<Q", put_at, at + OFF["SGEAddr"], addr)
        struct.pack_into("<I", put_at, at + OFF["SGELength"], n)
        struct.pack_into("<I", put_at, at + OFF["SGELKey"], key)

    def recv(self, wr_id, addr, n):
        m, i = self.mem, self.mem.load("QPRQProd")
        at = m.slot(i, "QPRQOff", "QPRQSize", m.load("QPRQStride"))
        struct.pack_into("<Q", m.mem, at + OFF["RQWRID"], wr_id)
        m.store(at + OFF["RQNumSGE"], 1)
        m.store(at + OFF["RQCookie"], wr_id + 100)
        self.sge(at + OFF["RQSGE"], addr, n)
        m.store("QPRQProd", i + 1)
        if m.load("QPRQStarved"):
            self.ring()

    def send(self, wr_id, op, addr, n, remote=0):
        m, i = self.mem, self.mem.load("QPSQProd")
        at = m.slot(i, "QPSQOff", "QPSQSize", m.load("QPSQStride"))
        struct.pack_into("<Q", m.mem, at + OFF["SQWRID"], wr_id)
        m.mem[at + OFF["SQOp"]] = op
        m.mem[at + OFF["SQFlags"]] = BITS["SQSignaled"]
        struct.pack_into("<H", m.mem, at + OFF["SQNumSGE"], 1)
        m.store(at + OFF["SQLength"], n)
        struct.pack_into("<Q", m.mem, at + OFF["SQRemoteAddr"], remote)
        m.store(at + OFF["SQRKey"], key)
        self.sge(at + OFF["SQSGE"], addr, n)
        m.store("QPSQProd", i + 1)
        self.ring()

    def poll(self):
        m = cqs[self.cq]
        i = m.load("CQCons")
        if m.load("CQProd") == i:
            return None
        at = m.slot(i, "CQCQEOff", "CQSize", 64)
        wr_id = struct.unpack_from("<Q", m.mem, at + OFF["CQEWRID"])[0]
        e = wr_id, m.load(at + OFF["CQEStatus"]), m.load(at + OFF["CQECookie"])
        m.store("CQCons", i + 1)
        return e

    def want(self, wr_id, status=0, cookie=0):
        """Arm, look again, then sleep."""
        m = cqs[self.cq]
        while True:
            e = self.poll()
            if not e:
                m.store("CQArm", m.load("CQArm") | BITS["ArmNext"])
                e = self.poll()
            if e:
                assert e == (wr_id, status, cookie), (e, wr_id, status, cookie)
                return
            os.read(pipe, 1)
            i = ring.load("ChanCons")
            cq = cqs[ring.load(ring.slot(i, "ChanOff", "ChanSize", 4))]
            ring.store("ChanCons", i + 1)
            cq.store("CQArm", cq.load("CQArm") & ~BITS["ArmQueued"])


a, b = QP(), QP()
cm = s.call("CM_CREATE_CHAN")


def create_id(uid):
    return s.call("CM_CREATE_ID", Chan=cm.Chan, PS=0x106, Type=2, UID=uid).ID


def event(type_, uid):
    os.read(cm.fds[0], 1)
    e = s.call("CM_GET_EVENT", Handle=cm.Chan)
    assert (e.Type, e.Status, e.UID) == (type_, 0, uid), (e.Type, e.Status, e.UID)
    return e


address = dict(Family=2, Port=7471, Addr=socket.inet_aton(sys.argv[3]))
listener, active = create_id(1), create_id(2)
s.call("CM_BIND", ID=listener, Addr=address)
s.call("CM_LISTEN", ID=listener, Backlog=1)
s.call("CM_RESOLVE_ADDR", ID=active, TimeoutMS=1000, Dst=address)
event(0, 2)  # ADDR_RESOLVED
s.call("CM_RESOLVE_ROUTE", ID=active, TimeoutMS=1000)
event(2, 2)  # ROUTE_RESOLVED
s.call("CM_CONNECT", ID=active, PD=pd, Param=dict(QPN=a.number, IRD=0xffff, ORD=0xffff))
passive = event(4, 1).Child  # CONNECT_REQUEST
s.call("CM_ACCEPT", ID=passive, PD=pd, UID=2, Param=dict(QPN=b.number, IRD=0xffff, ORD=0xffff))
event(9, 2)  # ESTABLISHED
event(9, 2)

buf[0:5] = b"hello"
b.recv(1, 4096, 100)
a.send(2, 2, 0, 5)  # IBV_WR_SEND
a.want(2)
b.want(1, cookie=101)
assert buf[4096:4101] == b"hello"
a.send(3, 0, 0, 5, remote=8192)  # IBV_WR_RDMA_WRITE
a.want(3)
assert buf[8192:8197] == b"hello"
a.send(4, 4, 12288, 5, remote=8192)  # IBV_WR_RDMA_READ
a.want(4)
assert buf[12288:12293] == b"hello"

b.recv(5, 4096, 100)
s.call("CM_DISCONNECT", Handle=active)
event(10, 2)  # DISCONNECTED
event(10, 2)
b.want(5, status=5, cookie=105)  # IBV_WC_WR_FLUSH_ERR
try:
    s.call("DESTROY_CQ", Handle=a.cq)
    raise AssertionError("a CQ in use was destroyed")
except OSError as e:
    assert e.errno == 16, e  # EBUSY
for qp in a, b:
    s.call("DESTROY_QP", Handle=qp.handle)
    s.call("DESTROY_CQ", Handle=qp.cq)
print("ok")
