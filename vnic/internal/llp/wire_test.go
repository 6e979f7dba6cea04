package llp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A talker is an end of a pipe that sends segments and is sent some, as a Link does.
type talker struct {
	Stream
	taker
	next       []byte   // nil, or what found no room
	sent, seen [][]byte // seen: by Peek
}

func (k *talker) Notice(seg []byte)           { k.seen = append(k.seen, bytes.Clone(seg)) }
func (k *talker) Write(b []byte) (int, error) { return k.taker.Write(b) }

// say sends a segment of n octets, or one that found no room before: false: it still finds none.
func (k *talker) say(t *testing.T, n int) bool {
	t.Helper()
	if k.next == nil {
		k.next = octets(min(n, k.EMSS()), byte(len(k.sent)))
	}
	took, err := k.WriteFrom(&segment{b: k.next, some: 1000})
	if err != nil || took != 0 && took != len(k.next) {
		t.Fatalf("%d of %d octets: %v", took, len(k.next), err)
	}
	if took > 0 {
		k.sent, k.next = append(k.sent, k.next), nil
	}
	k.Flush()
	return took > 0
}

// hear takes what there is.
func (k *talker) hear(t *testing.T) {
	t.Helper()
	for {
		if n, err := k.ReadInto(&k.taker); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			return
		}
	}
}

func talkers() (x, y *talker) {
	a, b := NewPipe(netip.AddrPort{}, netip.AddrPort{})
	return &talker{Stream: a}, &talker{Stream: b}
}

// move has x and y go on over two ends that it returns.
func move(t *testing.T, x, y *talker, l iwarptest.Link) (a, b *iwarptest.Stream) {
	t.Helper()
	a, b = iwarptest.NewPair(l)
	if done, moved := MoveTo(x.Stream, a, b); done == nil || !moved() || Movable(x.Stream) ||
		Movable(y.Stream) {
		t.Fatal("it does not move")
	}
	return a, b
}

// Wherever a pipe is when it moves, with as much on its way and either side ahead, each segment
// arrives once, in order and as it was, and then the end.
func TestWire(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		x, y := talkers()
		var moved []string
		for _, k := range []*talker{x, y} {
			k.Stream.(Mover).OnMoved(func(local, _ netip.AddrPort, _ int) {
				moved = append(moved, fmt.Sprint(local.Port()))
			})
		}
		at := rng.IntN(60)
		var done <-chan struct{}
		for i := range 200 {
			if i == at {
				a, b := iwarptest.NewPair(iwarptest.Link{Buffer: 100 + rng.IntN(50_000),
					CutEvery: rng.IntN(3) * 700, TakeLess: rng.IntN(2) * 3, EMSS: 500 + rng.IntN(3000)})
				done, _ = MoveTo(x.Stream, a, b)
			}
			k, peer := x, y
			if rng.IntN(2) == 0 {
				k, peer = y, x
			}
			n := 1 + rng.IntN(300)
			if rng.IntN(3) == 0 {
				n = 1 + rng.IntN(iwarp.MaxRecord)
			}
			switch rng.IntN(5) {
			case 0:
				peer.refuse = !peer.refuse
			case 1:
				peer.hear(t)
			default:
				k.say(t, n)
			}
		}
		for x.refuse, y.refuse = false, false; x.next != nil || y.next != nil; {
			for _, k := range []*talker{x, y} {
				if k.next != nil {
					k.say(t, 1)
				}
			}
			x.hear(t)
			y.hear(t)
		}
		x.Flush()
		y.Flush()
		select {
		case <-done:
		default:
			t.Fatalf("seed %d: not moved", seed)
		}
		if slices.Sort(moved); !slices.Equal(moved, []string{"1", "2"}) {
			t.Errorf("told of %v", moved)
		}
		x.CloseWrite()
		y.CloseWrite()
		for _, p := range [][2]*talker{{x, y}, {y, x}} {
			from, to := p[0], p[1]
			for {
				n, err := to.ReadInto(&to.taker)
				from.Flush()
				if err == io.EOF && n == 0 { // an end shows only when nothing is left
					break
				}
				if err != nil {
					t.Fatalf("seed %d: %d, %v", seed, n, err)
				}
			}
			if !slices.EqualFunc(from.sent, to.got, bytes.Equal) {
				t.Fatalf("seed %d: %d segments sent, %d came, or they differ", seed, len(from.sent),
					len(to.got))
			}
		}
	}
}

// What TCP has not taken when an end closes is sent still, and then the end; an abort ends it
// there, too, and a close that nobody makes room for. What comes with a wrong CRC is not taken.
func TestWireEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, x, y *talker, a *iwarptest.Stream){
		"close": func(t *testing.T, x, y *talker, a *iwarptest.Stream) {
			x.Close()
			x.Flush() // the step goes on to its end
			for range 100 {
				synctest.Wait()
				if _, err := y.ReadInto(&y.taker); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if !slices.EqualFunc(x.sent, y.got, bytes.Equal) {
				t.Errorf("%d of %d came", len(y.got), len(x.sent))
			}
			y.Close()
		},
		"close and abort": func(t *testing.T, x, y *talker, a *iwarptest.Stream) {
			var e End
			e.Init(x)
			e.Endpoint = closer{}
			e.CloseWithin(time.Second)
			time.Sleep(time.Minute)
			if _, err := y.ReadInto(&y.taker); !errors.Is(err, iwarptest.ErrReset) {
				t.Error(err)
			}
			y.Abort()
		},
		"abort": func(t *testing.T, x, y *talker, a *iwarptest.Stream) {
			x.Abort()
			if _, err := y.ReadInto(&y.taker); !errors.Is(err, iwarptest.ErrReset) {
				t.Error(err)
			}
			y.Abort()
		},
		"damage": func(t *testing.T, x, y *talker, a *iwarptest.Stream) {
			n, _ := a.Sent()
			a.Corrupt(n, 1)
			for range 100 {
				x.Flush()
				if _, err := y.ReadInto(&y.taker); errors.Is(err, errFPDU) {
					x.Abort()
					y.Abort()
					return
				}
			}
			t.Error("nobody has noticed")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := talkers()
				a, _ := move(t, x, y, iwarptest.Link{Buffer: 600})
				x.say(t, 1)
				x.say(t, 1000)
				x.say(t, 1000)
				if x.Properties().Transport != TCP || y.Properties().Transport != Memory {
					t.Errorf("%+v and %+v", x.Properties(), y.Properties())
				}
				end(t, x, y, a)
			})
		})
	}
}

type closer struct{}

func (closer) Close() {}

// A pipe of which one end is over has moved, though the other one has not left, so that nobody
// waits; one that has ended does not move.
func TestWireOver(t *testing.T) {
	for name, end := range map[string]func(k *talker){
		"close":  func(k *talker) { k.Close() },
		"abort":  func(k *talker) { k.Abort() },
		"closed": func(k *talker) { k.CloseWrite() },
	} {
		x, y := talkers()
		a, b := iwarptest.NewPair(iwarptest.Link{})
		done, _ := MoveTo(x.Stream, a, b)
		if name == "closed" { // by half
			x.Flush()
		}
		end(y)
		select {
		case <-done:
		default:
			t.Errorf("%s: somebody waits", name)
		}
		if name == "closed" {
			if _, err := x.ReadInto(&x.taker); err != io.EOF {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if x.Abort(); Movable(x.Stream) {
			t.Errorf("%s: it moves on", name)
		}
		if x, y = talkers(); true {
			end(y)
			done, moved := MoveTo(x.Stream, a, b)
			if done != nil || moved() {
				t.Errorf("%s: what is over moves", name)
			}
		}
	}
}

// While a Send waits for a receive all that is behind it is shown, wherever it is, and none taken.
func TestWirePeek(t *testing.T) {
	x, y := talkers()
	y.refuse = true
	x.say(t, 50)
	move(t, x, y, iwarptest.Link{CutEvery: 7})
	x.Flush()
	for range 3 {
		x.say(t, 200)
		y.hear(t)
	}
	y.refuse = false
	if y.hear(t); len(y.got) != 4 {
		t.Fatalf("%d came", len(y.got))
	}
	y.refuse = true
	x.say(t, 300)
	y.hear(t) // it is out of TCP then
	x.say(t, 400)
	x.CloseWrite()
	for range 2 {
		y.seen = nil
		if err := y.Peek(y); err != io.EOF || !slices.EqualFunc(y.seen, x.sent[4:], bytes.Equal) {
			t.Errorf("%d segments are seen, %v", len(y.seen), err)
		}
	}
	y.refuse = false
	if y.ReadInto(&y.taker); !slices.EqualFunc(y.got, x.sent, bytes.Equal) {
		t.Errorf("%d of %d came", len(y.got), len(x.sent))
	}
}

// A gulp is a Stream that takes all.
type gulp struct {
	Stream
	b [100]byte
}

func (g *gulp) WriteFrom(src iwarp.Source) (int, error) {
	n := src.Len()
	for src.Len() > 0 {
		if _, err := src.Read(g.b[:]); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// No segment allocates anything.
func TestAllocsWire(t *testing.T) {
	w := &wire{s: &gulp{}}
	segment := octets(1000, 1)
	src := bytes.NewReader(segment)
	if n := testing.AllocsPerRun(100, func() {
		src.Reset(segment)
		if n, err := w.writeFrom(src); n != len(segment) || err != nil {
			t.Fatalf("%d: %v", n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
