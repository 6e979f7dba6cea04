package rpc

import (
	"bytes"
	"errors"
	"reflect"
	"syscall"
	"testing"
)

// FuzzControlCodec: what can be decoded encodes to the same octets (as far as the struct goes), and
// is refused as too big exactly if something is there that is not known.
func FuzzControlCodec(f *testing.F) {
	for i, m := range messages {
		f.Add(uint8(i), AppendMessage(nil, Header{Op: OpList}, m)[HeaderLen:])
	}
	f.Add(uint8(4), []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		if len(body) > MaxMessage-HeaderLen {
			return
		}
		typ := reflect.TypeOf(messages[int(which)%len(messages)]).Elem()
		v := reflect.New(typ).Interface().(Message)
		err := Decode(body, v)
		size := int(typ.Size())
		unknown := len(body) > size && len(bytes.Trim(body[size:], "\x00")) > 0
		if unknown != errors.Is(err, syscall.E2BIG) || err != nil && !unknown {
			t.Fatalf("%v from %d octets, unknown %v: %v", typ, len(body), unknown, err)
		}
		if err != nil {
			return
		}
		h, again, err := ParseMessage(AppendMessage(nil, Header{Op: OpList, Seq: 5}, v))
		if err != nil || h.Seq != 5 {
			t.Fatalf("%v: %+v, %v", typ, h, err)
		}
		want := append(bytes.Clone(body), make([]byte, size)...)[:size]
		if !bytes.Equal(again, want) {
			t.Fatalf("%v: % x\nbecame % x", typ, want, again)
		}
		w := reflect.New(typ).Interface().(Message)
		if err := Decode(again, w); err != nil || !reflect.DeepEqual(v, w) {
			t.Fatalf("%v: %+v became %+v, %v", typ, v, w, err)
		}
	})
}
