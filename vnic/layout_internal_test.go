package vnic

import (
	"testing"
	"unsafe"
)

// With thousands of QPs what a message needs of one comes from memory, and is asked for together:
// it is in front, on as few lines of the cache as can be. A field that no message needs belongs
// behind it.
func TestQPLayout(t *testing.T) {
	const line = 64
	var qp QP
	for _, tt := range []struct {
		what      string
		got, most uintptr
	}{
		{"who runs it, which it is and its link", unsafe.Offsetof(qp.work), 2 * line},
		{"all that messages need", frontLen, 23 * line},
		{"requests, in front of their queues", unsafe.Offsetof(qp.work.Queues), 10 * line},
		{"a QP", unsafe.Sizeof(qp), 32 * line},
	} {
		t.Logf("%s: %d octets", tt.what, tt.got)
		if tt.got > tt.most {
			t.Errorf("%s: %d octets, at most %d", tt.what, tt.got, tt.most)
		}
	}
	front := frontLen
	for _, tt := range []struct {
		what string
		at   uintptr
	}{
		{"mailbox", unsafe.Offsetof(qp.mailbox)}, {"options", unsafe.Offsetof(qp.options)},
		{"connection", unsafe.Offsetof(qp.connection)}, {"ending", unsafe.Offsetof(qp.ending)},
	} {
		if tt.at < front {
			t.Errorf("%s at %d is among what messages need, %d octets", tt.what, tt.at, front)
		}
	}
}
