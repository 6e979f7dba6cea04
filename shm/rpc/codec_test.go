package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// messages are all structs of the table, one of each.
var messages = func() (all []Message) {
	all = append(all, &Header{})
	seen := make(map[reflect.Type]bool)
	for _, o := range Ops() {
		req, rep := o.Messages()
		for _, m := range []Message{req, rep} {
			if t := reflect.TypeOf(m); !seen[t] {
				seen[t] = true
				all = append(all, m)
			}
		}
	}
	return all
}()

// The packed encoding is the C struct: natural alignment, no hidden padding, 8-octet sizes, and it
// fits a message. So a message's octets in memory are its encoding.
func TestMessagesAreOctets(t *testing.T) {
	for _, m := range messages {
		v := reflect.ValueOf(m).Elem()
		b := m.octets()
		if len(b) != int(v.Type().Size()) {
			t.Fatalf("%v: %d octets, the struct has %d", v.Type(), len(b), v.Type().Size())
		}
		for i := range b {
			b[i] = byte(i*7 + 1)
		}
		enc := AppendMessage(nil, Header{}, m)[HeaderLen:]
		if fields := appendFields(nil, v); !bytes.Equal(enc, fields) {
			t.Errorf("%v: encoded as\n%x, its fields are\n%x", v.Type(), enc, fields)
		}
		if len(enc)+HeaderLen > MaxMessage || len(enc)%8 != 0 {
			t.Errorf("%v: %d octets", v.Type(), len(enc))
		}
		clear(b)
	}
}

// Every field survives: fill each octet with something else.
func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range messages {
		typ := reflect.TypeOf(m).Elem()
		body := make([]byte, typ.Size())
		for i := range body {
			body[i] = byte(i*7 + 1)
		}
		v := reflect.New(typ).Interface().(Message)
		if err := Decode(body, v); err != nil {
			t.Errorf("%v: %v", typ, err)
		}
		msg := AppendMessage(nil, Header{Op: OpList, Seq: 9, Status: -5}, v)
		h, got, err := ParseMessage(msg)
		if err != nil || h.Op != OpList || h.Seq != 9 || h.Status != -5 || !bytes.Equal(got, body) {
			t.Errorf("%v: %+v, %v, octets differ: %v", typ, h, err, !bytes.Equal(got, body))
		}
	}
}

// The encoding is that of encoding/binary, and nothing is allocated for it.
func TestEncodingIsEncodingBinarys(t *testing.T) {
	for _, m := range messages {
		typ := reflect.TypeOf(m).Elem()
		v := reflect.New(typ).Interface().(Message)
		body := make([]byte, typ.Size())
		for i := range body {
			body[i] = byte(i*11 + 3)
		}
		if err := Decode(body, v); err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		want := make([]byte, 0, MaxMessage)
		want, err := binary.Append(want, binary.NativeEndian, v)
		if err != nil || binary.Size(v) != len(body) {
			t.Fatalf("%T: %v", m, err)
		}
		if got := AppendMessage(nil, Header{}, v)[HeaderLen:]; !bytes.Equal(got, want) {
			t.Errorf("%T: % x, want % x", v, got, want)
		}
		buf, in := make([]byte, 0, MaxMessage), v
		if n := testing.AllocsPerRun(10, func() {
			buf = AppendMessage(buf[:0], Header{}, in)
			if _, got, err := ParseMessage(buf); err != nil || Decode(got, in) != nil {
				t.Errorf("%T: %v", m, err)
			}
		}); n != 0 {
			t.Errorf("%T: %v allocations", m, n)
		}
	}
}

// Octets in arrays are moved together: a message with private data takes about as long as one
// without.
func BenchmarkCodec(b *testing.B) {
	for _, m := range []Message{&CMConnectRequest{}, &CreateCQRequest{}} {
		msg := AppendMessage(nil, Header{}, m)
		b.Run(reflect.TypeOf(m).Elem().Name(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				msg = AppendMessage(msg[:0], Header{}, m)
				_, body, err := ParseMessage(msg)
				if err != nil {
					b.Fatal(err)
				}
				if err := Decode(body, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// docs/abi.md#evolution: shorter is zero filled, longer must be zero.
func TestEvolution(t *testing.T) {
	full := AppendMessage(nil, Header{}, &CreateCQRequest{1, 2, 3, 4})[HeaderLen:]
	for n := range full {
		var got CreateCQRequest
		if err := Decode(full[:n], &got); err != nil {
			t.Errorf("%d octets: %v", n, err)
		}
		if n <= 12 && got.Vector != 0 || n >= 4 && got.Ctx != 1 {
			t.Errorf("%d octets: %+v", n, got)
		}
	}
	var got CreateCQRequest
	if err := Decode(append(bytes.Clone(full), 0, 0, 0), &got); err != nil || got.Vector != 4 {
		t.Errorf("zeroes behind: %v, %+v", err, got)
	}
	if err := Decode(append(bytes.Clone(full), 0, 1), &got); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("a one behind: %v", err)
	}
}

func TestParseMessageRefuses(t *testing.T) {
	good := AppendMessage(nil, Header{Op: OpAllocPD}, &AllocPDRequest{})
	for n := range good {
		if _, _, err := ParseMessage(good[:n]); !abi.IsViolation(err) {
			t.Errorf("%d of %d octets: %v", n, len(good), err)
		}
	}
	if _, _, err := ParseMessage(append(good, 0)); !abi.IsViolation(err) {
		t.Errorf("longer than its header says: %v", err)
	}
	if _, _, err := ParseMessage(make([]byte, MaxMessage+1)); !abi.IsViolation(err) {
		t.Errorf("oversized: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for _, s := range []string{"10.77.0.2:7174", "[fd77::2]:1", "0.0.0.0:0", "[::]:65535"} {
		ap := netip.MustParseAddrPort(s)
		if got := MakeSockAddr(ap).AddrPort(); got != ap {
			t.Errorf("%v became %v", ap, got)
		}
	}
	if a := (SockAddr{Family: 3}).AddrPort(); a.IsValid() {
		t.Errorf("family 3 is %v", a)
	}
	if MakeSockAddr(netip.AddrPort{}).Family != 0 {
		t.Error("no address has a family")
	}
	for _, s := range []string{"10.77.0.2/24", "fd77::2/64"} {
		p := netip.MustParsePrefix(s)
		if got := MakePrefix(p).Prefix(); got != p {
			t.Errorf("%v became %v", p, got)
		}
	}
}

// V6: what is asked for is never cut, and nobody gets less than abi.MinInline.
func TestCapsRound(t *testing.T) {
	for _, c := range []QPCaps{{}, {MaxSendWR: 5, MaxRecvWR: 1, MaxSendSGE: 7, MaxRecvSGE: 3,
		MaxInline: 1000, TxSlab: 100}, {MaxSendSGE: abi.MaxSGE, MaxInline: 1}} {
		r, ok := c.Round(100, false)
		if !ok || r.MaxSendWR < max(c.MaxSendWR, 1) || r.MaxRecvWR < max(c.MaxRecvWR, 1) ||
			r.MaxSendSGE < max(c.MaxSendSGE, 1) ||
			r.MaxRecvSGE < max(c.MaxRecvSGE, 1) || r.MaxInline < max(c.MaxInline, abi.MinInline) ||
			r.TxSlab < c.TxSlab {
			t.Errorf("%+v became %+v, %v", c, r, ok)
		}
		l := r.Layout()
		if l.SQMaxSGE() < r.MaxSendSGE || l.RQMaxSGE() < r.MaxRecvSGE || l.MaxInline != r.MaxInline {
			t.Errorf("%+v is laid out as %+v", r, l)
		}
	}
	for _, c := range []QPCaps{{MaxSendWR: 101}, {MaxRecvWR: ^uint32(0)}, {MaxSendSGE: 33},
		{MaxRecvSGE: 33}, {MaxInline: 1025}, {TxSlab: abi.MaxSlab + 1}, {Pad: 1}} {
		if r, ok := c.Round(100, false); ok {
			t.Errorf("%+v became %+v", c, r)
		}
	}
}
