package tcp_test

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// Peek shows what is there, as often as it is called, and takes none of it; the end of the
// connection it tells at once, though octets are before it.
func TestPeek(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(a interface{ CloseWrite() error }, abort func())
		want error
	}{
		"FIN": {func(a interface{ CloseWrite() error }, _ func()) { a.CloseWrite() }, io.EOF},
		"RST": {func(_ interface{ CloseWrite() error }, abort func()) { abort() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t)
			bell := netstacktest.NewBell(b)
			sent := bytes.Repeat([]byte("0123456789"), 500)
			if n, err := a.WriteFrom(bytes.NewReader(sent)); n != len(sent) || err != nil {
				t.Fatal(n, err)
			}
			var got bytes.Buffer
			for got.Len() < len(sent) {
				got.Reset()
				if err := b.Peek(&got); err != nil {
					t.Fatal(err)
				}
				if got.Len() < len(sent) {
					<-bell
				}
			}
			if first := readAll(t, b, bell, len(sent)); !bytes.Equal(first, sent) ||
				!bytes.Equal(got.Bytes(), sent) {
				t.Error("what was read and what was shown differ")
			}
			if n, err := a.WriteFrom(bytes.NewReader(sent)); n != len(sent) || err != nil {
				t.Fatal(n, err)
			}
			tt.end(a, a.Abort)
			var err error
			for err == nil {
				got.Reset()
				if err = b.Peek(&got); err == nil {
					<-bell
				}
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("it ended with %v, want %v", err, tt.want)
			}
			if tt.want == io.EOF {
				if left := readAll(t, b, bell, len(sent)); !bytes.Equal(left, sent) {
					t.Error("what was before the end is not all there")
				}
			}
			if _, err := b.ReadInto(&got); !errors.Is(err, tt.want) {
				t.Errorf("behind it: %v", err)
			}
			if err := b.Peek(&got); !errors.Is(err, tt.want) {
				t.Errorf("behind it: %v", err)
			}
		})
	}
}
