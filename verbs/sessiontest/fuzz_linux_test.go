package sessiontest

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// FuzzSession has a daemon whose every reply, and the memory that comes with it, has octets
// changed. The library answers each call of the program all the same, and the program ends by
// itself.
func FuzzSession(f *testing.F) {
	need(f) // not within the time that an input has
	f.Add([]byte{})
	f.Add([]byte{1, 8, 0, 0xff})                                         // a status
	f.Add([]byte{0, 0, 0, 0, 2, byte(abi.SessBellOff), 0, 1})            // where bells are
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 16, 0, 7, 3, 8, 0, 200})     // a channel's ring
	f.Add([]byte{2, 64, 0, 1, 2, 128, 0, 9, 2, 192, 0, 255, 3, 3, 3, 3}) // words that both write
	f.Fuzz(func(t *testing.T, data []byte) {
		// Four octets for each reply: what is changed, where, and how.
		d := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
			if len(data) < 4 {
				return msg, fds
			}
			what, off, v := data[0]%8, int(data[1])|int(data[2])<<8, data[3]
			data = data[4:]
			switch {
			case what == 1 && len(msg) > 0:
				msg[off%len(msg)] ^= v
			case what >= 2 && what <= 3 && int(what-2) < len(fds):
				unix.Pwrite(fds[what-2], []byte{v}, int64(off)) // it is no memory
			case what == 4 && len(fds) > 0:
				return msg, fds[1:] // a descriptor is lost, here too
			case what == 5:
				return msg[:off%(len(msg)+1)], fds
			case what == 6:
				return grow(off%5000, v)(msg, fds)
			case what == 7:
				return extra(off%40)(msg, fds)
			}
			return msg, fds
		})
		p := start(t, d.path)
		if p.do("open") != "ok" {
			return
		}
		d.mu.Lock()
		s := d.sessions[len(d.sessions)-1] // one that died before the device was open has a successor
		d.mu.Unlock()
		ch, cq, pd := p.do("chan") == "ok", false, false
		if ch {
			p.want("nonblock 0", "ok")
			if cq = p.do("cq 0 4 0")[:2] == "ok"; cq {
				p.want("arm 0 0", "ok")
				s.mu.Lock()
				nth(s.cqs, 0).ring.Push(&abi.CQE{QPN: 99}, true) // the library may have written anything
				s.mu.Unlock()
				p.do("poll 0")
				if p.do("get 0") == "0" {
					p.want("ack 0 1", "ok")
				}
			}
		}
		if pd = p.do("pd") == "ok"; pd {
			if p.do("mr malloc 100 0 1") == "ok" {
				p.do("delmr 0")
			}
		}
		if cq {
			p.do("delcq 0")
		}
		if ch {
			p.do("delchan 0")
		}
		p.want("close", "ok")
		p.send("exit")
		p.end(7)
	})
}
