package abi

import (
	"bytes"
	"testing"
)

// Offsets are the ABI: a change must be made on purpose, in verbs/abi.h too.
func TestLayoutIsTheABI(t *testing.T) {
	if SQStride(1, 64) != 128 || SQStride(1, 0) != 64 || SQStride(MaxSGE, 0) != 576 ||
		SQStride(1, MaxInline) != MaxSQStride || RQStride(2) != 48 {
		t.Error("strides")
	}
	e := CQE{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	var b [CQELen]byte
	e.Encode(b[:])
	want := []byte{
		1, 0, 0, 0, 0, 0, 0, 0, // wr_id @0
		// status @8 opcode @12 vendor_err @16 byte_len @20
		2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
		6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, // imm @24 qp_num @28 src_qp @32 wc_flags @36
		// sq_done @40 cookie @44 slab_off @48 slab_len @52
		10, 0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0,
		14, 0, 0, 0, 0, 0, 0, 0, // timestamp @56
	}
	if !bytes.Equal(b[:], want) {
		t.Errorf("CQE % x", b)
	}
	w := SendWQE{WRID: 1, Op: 2, Flags: 3, NumSGE: 1, Length: 5, RemoteAddr: 6, RKey: 7, Imm: 8,
		CmpAdd: 9, Swap: 10, SGE: [MaxSGE]SGE{{11, 12, 13}}}
	slot := make([]byte, 64)
	w.Encode(slot)
	want = []byte{
		1, 0, 0, 0, 0, 0, 0, 0, // wr_id @0
		2, 3, 1, 0, 5, 0, 0, 0, // op @8 flags @9 nsge @10 length @12
		6, 0, 0, 0, 0, 0, 0, 0, // remote_addr @16
		7, 0, 0, 0, 8, 0, 0, 0, // rkey @24 imm @28
		9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, // cmp_add @32 swap @40
		11, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, // SGE: addr len lkey
	}
	if !bytes.Equal(slot, want) {
		t.Errorf("send WQE % x", slot)
	}
	r := RecvWQE{WRID: 1, NumSGE: 1, Cookie: 3, SGE: [MaxSGE]SGE{{4, 5, 6}}}
	slot = make([]byte, RQStride(1))
	r.Encode(slot)
	want = []byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0,
		6, 0, 0, 0}
	if !bytes.Equal(slot, want) {
		t.Errorf("receive WQE % x", slot)
	}
}
