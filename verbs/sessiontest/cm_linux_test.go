package sessiontest

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/rpc"
)

// A cmFake is the connection manager of a fake: ids to which nothing happens but what a test says.
// It is used with the session's lock held.
type cmFake struct {
	pipes  map[uint32]int // of channels: the write end
	ids    map[uint32]uint32
	queue  []rpc.CMEvent // given to whoever asks, at whatever channel
	query  rpc.CMQueryReply
	tokens uint32 // to take back when an id is destroyed
	gone   []uint32
}

func newCMFake() *cmFake {
	return &cmFake{pipes: make(map[uint32]int), ids: make(map[uint32]uint32), query: rpc.CMQueryReply{
		Device: rpc.NoDevice}}
}

func (c *cmFake) answer(s *session, op rpc.Op, body []byte) (rep rpc.Message, fds []int,
	errno syscall.Errno) {
	n := s.next
	var handle rpc.HandleRequest
	switch op {
	case rpc.OpCMCreateChan:
		r, w := s.newPipe()
		c.pipes[n] = w
		return &rpc.CMCreateChanReply{Chan: n}, []int{r}, 0
	case rpc.OpCMDestroyChan:
		s.decode(body, &handle)
		if fd, ok := c.pipes[handle.Handle]; ok {
			closePipe(&fd)
		}
		delete(c.pipes, handle.Handle)
		return nil, nil, 0
	case rpc.OpCMCreateID:
		var req rpc.CMCreateIDRequest
		s.decode(body, &req)
		c.ids[n] = req.Chan
		return &rpc.CMCreateIDReply{ID: n}, nil, 0
	case rpc.OpCMDestroyID:
		s.decode(body, &handle)
		c.gone = append(c.gone, handle.Handle)
		return &rpc.CMDestroyIDReply{Tokens: c.tokens}, nil, 0
	case rpc.OpCMMigrate:
		var req rpc.CMMigrateRequest
		s.decode(body, &req)
		return &rpc.CMMigrateReply{Tokens: c.tokens}, nil, 0
	case rpc.OpCMQuery:
		return &c.query, nil, 0
	case rpc.OpCMBind, rpc.OpCMResolveAddr, rpc.OpCMResolveRoute, rpc.OpCMListen, rpc.OpCMSetOption,
		rpc.OpCMDisconnect:
		return nil, nil, 0
	case rpc.OpCMGetEvent:
		s.decode(body, &handle)
		if len(c.queue) == 0 {
			return nil, nil, syscall.EAGAIN
		}
		e := c.queue[0]
		c.queue = c.queue[1:]
		return &e, nil, 0
	}
	return nil, nil, syscall.EOPNOTSUPP
}

func (c *cmFake) close() {
	for n, fd := range c.pipes {
		closePipe(&fd)
		delete(c.pipes, n)
	}
}

// push gives a session's program an event, with a token at each channel.
func (s *session) push(e rpc.CMEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cm.queue = append(s.cm.queue, e)
	for _, fd := range s.cm.pipes {
		token(fd)
	}
}

// handles are those of the ids that were made, in this order.
func (s *session) handles() (out []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.next + 1 {
		if _, ok := s.cm.ids[n]; ok {
			out = append(out, n)
		}
	}
	return out
}

// has says whether the program has destroyed an id.
func (s *session) has(gone uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.cm.gone {
		if n == gone {
			return true
		}
	}
	return false
}

var cmShell = sync.OnceValues(func() (string, error) {
	b, err := build()
	if err != nil {
		return "", err
	}
	return compile("cmshell", b.libs, "testdata/cmshell.c", "-l:librdmacm.so.1", "-l:libibverbs.so.1")
})

// startCM runs the shell of rdma_cm on a fake, with a channel and an id; the id's handle is
// returned.
func startCM(t testing.TB, f *fake) (*program, *session, uint32) {
	t.Helper()
	need(t)
	shell, err := cmShell()
	if err != nil {
		t.Fatal(err)
	}
	p := startFile(t, shell, f.path)
	p.want("chan", "ok", "id 0", "ok")
	s := f.session(0)
	return p, s, s.handles()[0]
}

var (
	here  = rpc.MakeSockAddr(netip.MustParseAddrPort("10.0.0.1:1000"))
	there = rpc.MakeSockAddr(netip.MustParseAddrPort("10.0.0.2:2000"))
)

// private is a ConnParam with n octets of private data, each 1.
func private(n int) (p rpc.ConnParam) {
	p.PrivateLen = uint32(n)
	for i := range min(n, rpc.MaxPrivate) {
		p.Private[i] = 1
	}
	return p
}

// What the devices of a fake have of Reads.
const maxIRD, maxORD = 128, 64

// What programs see of events that make sense: devices, addresses, private data cut to an octet's
// length, Reads from their own point of view. A peer may offer more Reads than the device has, or
// not say how many (MPA of revision 1): a program that accepts with what the event says is given
// what rdma_accept takes (EMPA-018, EMPA-019).
func TestCMEvents(t *testing.T) {
	p, s, id := startCM(t, newFake(t, nil))
	s.push(rpc.CMEvent{Type: rpc.EvAddrResolved, ID: id, Device: 1, Src: here, Dst: there})
	p.want("event 0", "0 0 0 -1 0/0 0 0 fake1 10.0.0.1", "event 0", "EAGAIN")

	request := rpc.CMEvent{Type: rpc.EvConnectRequest, ID: id, Child: 1000, Device: 0, Src: there,
		Dst: here, Param: private(300)}
	request.Param.IRD, request.Param.ORD = 7, 300
	s.push(request)
	p.want("event 0", "4 0 1 0 255/255 128 7 fake0 10.0.0.2")
	for child, peer := range map[uint32][2]uint16{
		1001: {maxORD, maxIRD}, 1002: {0x3ffe, 0x3ffe}, 1003: {rpc.ReadsDefault, rpc.ReadsDefault},
	} {
		request.Child, request.Param = child, rpc.ConnParam{IRD: peer[0], ORD: peer[1]}
		s.push(request)
		reply := p.do("event 0")
		if !strings.HasSuffix(reply, " 0/0 128 64 fake0 10.0.0.2") {
			t.Errorf("a peer that offers %v: %s", peer, reply)
		}
		p.want("ack", "ok")
	}

	up := rpc.CMEvent{Type: rpc.EvEstablished, ID: 1000, Device: 0, Src: here, Dst: there,
		Param: private(3)}
	up.Param.IRD, up.Param.ORD = 7, 9
	s.push(up)
	p.want("event 0", "9 0 1 -1 3/3 7 9 fake0 10.0.0.1")
	s.push(rpc.CMEvent{Type: rpc.EvDisconnected, Status: -int32(syscall.ECONNRESET), ID: 1000})
	p.want("event 0", "10 0 1 -1 0/0 0 0 fake0 10.0.0.1") // there is no status to an end
	s.push(rpc.CMEvent{Type: rpc.EvRejected, Status: -int32(syscall.ECONNRESET), ID: id,
		Param: private(2)})
	p.want("event 0", "8 -104 0 -1 2/2 0 0 fake1 10.0.0.1")
	for range 5 {
		p.want("ack", "ok")
	}
	p.want("destroy 1", "ok", "destroy 0", "ok", "delchan 0", "ok")
}

// Tokens without events, and events that are dropped with their ids.
func TestCMTokens(t *testing.T) { byEither(t, cmTokens) }

func cmTokens(t *testing.T, f *fake) {
	p, s, id := startCM(t, f)
	p.want("chan", "ok", "id 1", "ok")
	s.mu.Lock()
	for _, fd := range s.cm.pipes {
		for range 3 {
			token(fd) // for nothing
		}
	}
	s.mu.Unlock()
	p.want("event 0", "EAGAIN")
	s.push(rpc.CMEvent{Type: rpc.EvRouteResolved, ID: id})
	p.want("event 0", "2 0 0 -1 0/0 0 0 - ", "ack", "ok")
	// A daemon that wants back more than there is gets what there is, and holds nobody up.
	s.mu.Lock()
	s.cm.tokens = ^uint32(0)
	s.mu.Unlock()
	p.want("migrate 0 1", "ok", "destroy 0", "ok", "destroy 1", "ok", "event 1", "EAGAIN", "delchan 0",
		"ok", "delchan 1", "ok")
}

// An event that makes no sense ends the session, and the program hears of each id that the device
// is gone.
func TestCMHostileEvents(t *testing.T) {
	for _, tt := range []struct {
		name string
		ev   func(id uint32) rpc.CMEvent
		want string // of rdma_get_cm_event: DEVICE_REMOVAL, if not given
	}{
		{name: "no such id", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvAddrResolved, ID: id + 1}
		}},
		{name: "id 0", ev: func(uint32) rpc.CMEvent { return rpc.CMEvent{Type: rpc.EvAddrResolved} }},
		{name: "no such type", ev: func(id uint32) rpc.CMEvent { return rpc.CMEvent{Type: 16, ID: id} }},
		{name: "private data too long", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvRejected, ID: id, Param: private(rpc.MaxPrivate + 1)}
		}},
		{name: "private data far too long", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvRejected, ID: id, Param: rpc.ConnParam{PrivateLen: ^uint32(0)}}
		}},
		{name: "request without an id", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvConnectRequest, ID: id}
		}},
		{name: "request with an id that is there", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvConnectRequest, ID: id, Child: id}
		}},
		// ADDR_ERROR, ENODEV
		{name: "no such device", want: "1 -19 0 -1 0/0 0 0 - ", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvAddrResolved, ID: id, Device: 2}
		}},
		{name: "request on no device", want: "ENODEV", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvConnectRequest, ID: id, Child: 1000, Device: rpc.NoDevice}
		}},
		{name: "addresses of no family", want: "9 0 0 -1 0/0 0 0 - ", ev: func(id uint32) rpc.CMEvent {
			return rpc.CMEvent{Type: rpc.EvEstablished, ID: id, Src: rpc.SockAddr{Family: 99},
				Dst: rpc.SockAddr{Family: ^uint16(0)}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, s, id := startCM(t, newFake(t, nil))
			s.push(tt.ev(id))
			if tt.want != "" {
				p.want("event 0", tt.want)
				if tt.want != "ENODEV" {
					p.want("ack", "ok")
				} else if !s.has(1000) {
					t.Error("the peer that asked was not refused")
				}
				p.want("event 0", "EAGAIN")
			} else {
				p.want("event 0", "11 0 0 -1 0/0 0 0 - ", "event 0", "EAGAIN", "id 0", "EIO", "ack", "ok")
				s.ended()
			}
			p.want("destroy 0", "ok", "delchan 0", "ok")
		})
	}
}

// Replies to calls: handles that cannot be, and devices that there are not.
func TestCMHostileReplies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		op     rpc.Op
		off    int // of a word of the reply
		v      uint32
		do     string
		answer string
	}{
		{"channel id 0", rpc.OpCMCreateID, 0, 0, "id 0", "EIO"},
		{"an id twice", rpc.OpCMCreateID, 0, 3, "id 0", "EIO"},
		{"bound to no device of ours", rpc.OpCMQuery, 48, 17, "bind 0 10.0.0.1", "ENODEV"},
		{"an address of no family", rpc.OpCMQuery, 0, 77, "bind 0 10.0.0.1", "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var on sync.Mutex
			armed := false
			f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
				on.Lock()
				defer on.Unlock()
				if armed && op == tt.op {
					ne.PutUint32(msg[rpc.HeaderLen+tt.off:], tt.v)
				}
				return msg, fds
			})
			p, _, id := startCM(t, f)
			if tt.name == "an id twice" {
				tt.v = id
			}
			on.Lock()
			armed = true
			on.Unlock()
			p.want(tt.do, tt.answer, "destroy 0", "ok", "delchan 0", "ok")
		})
	}
}

// The daemon dies: each id is told once, a connection that it is over first.
func TestCMDeath(t *testing.T) {
	for _, pipesFirst := range []bool{false, true} {
		byEither(t, func(t *testing.T, f *fake) {
			p, s, id := startCM(t, f)
			p.want("id 0", "ok")
			s.push(rpc.CMEvent{Type: rpc.EvEstablished, ID: id, Src: here, Dst: there})
			p.want("event 0", "9 0 0 -1 0/0 0 0 - 10.0.0.1", "ack", "ok")
			f.die(pipesFirst)
			got := map[string]int{}
			for range 3 {
				e := p.do("event 0")
				got[strings.Join(strings.Fields(e)[:3], " ")]++
				if strings.HasPrefix(e, "11 0 0") && got["10 0 0"] == 0 {
					t.Error("DEVICE_REMOVAL comes before DISCONNECTED")
				}
				p.want("ack", "ok")
			}
			if got["10 0 0"] != 1 || got["11 0 0"] != 1 || got["11 0 1"] != 1 {
				t.Errorf("events %v", got)
			}
			p.want("event 0", "EAGAIN", "event 0", "EAGAIN", "disconnect 0", "EINVAL", "destroy 0", "ok",
				"destroy 1", "ok", "delchan 0", "ok")
		})
	}
}

// A standing is a fake and a program of rdma_cm for many inputs of a fuzz target: to start a
// program takes longer than an input. It is the TB of both, and fails the test that runs.
type standing struct {
	testing.TB // of the input that is tried
	p          *program
	f          *fake
	uses       int

	mu       sync.Mutex
	cleanups []func()
}

func (w *standing) Cleanup(f func()) {
	w.mu.Lock() // the fake's goroutines come too
	defer w.mu.Unlock()
	w.cleanups = append(w.cleanups, f)
}

func (w *standing) TempDir() string {
	dir, err := os.MkdirTemp("", "vrnic-fuzz-")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (w *standing) stop() {
	for _, f := range slices.Backward(w.cleanups) {
		f()
	}
	*w = standing{}
}

// use gives an input a channel and an id.
func (w *standing) use(t *testing.T) (*program, *session, uint32) {
	w.TB = t
	if w.uses++; w.p == nil {
		w.f = newFake(w, nil)
		w.p, _, _ = startCM(w, w.f)
		w.p.want("reset", "ok")
	}
	w.p.want("chan", "ok", "id 0", "ok")
	w.f.mu.Lock()
	s := w.f.sessions[len(w.f.sessions)-1]
	w.f.mu.Unlock()
	ids := s.handles()
	return w.p, s, ids[len(ids)-1]
}

// FuzzCMEvents has events with any octets: the library gives them to the program or ends the
// session, and all can be destroyed.
func FuzzCMEvents(f *testing.F) {
	need(f)
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{0, 0, 4, 12, 0, 77})              // a request with child 77
	f.Add([]byte{0, 0, 4, 12, 0, 77, 8, 0, 77, 9}) // and something more
	w := &standing{}
	f.Cleanup(w.stop)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, s, id := w.use(t)
		for len(data) >= 3 { // up to 8 changes for each event: where, and what
			e := rpc.CMEvent{Type: rpc.EvEstablished, ID: id, Src: here, Dst: there}
			b := rpc.AppendMessage(nil, rpc.Header{}, &e)[rpc.HeaderLen:]
			for n := 0; n < 8 && len(data) >= 3; n++ {
				b[(int(data[0])|int(data[1])<<8)%len(b)] = data[2]
				data = data[3:]
			}
			if err := rpc.Decode(b, &e); err != nil {
				t.Fatal(err)
			}
			s.push(e)
			if got := p.do("event 0"); !strings.HasPrefix(got, "E") {
				p.want("ack", "ok")
			}
		}
		p.want("reset", "ok")
		if w.uses == 1000 {
			p.send("exit 7")
			p.end(7)
			w.stop()
		}
	})
}
