package abi

import (
	"reflect"
	"unsafe"
)

// The messages are structs of integers and of arrays of them, in host byte order and without hidden padding: their octets in
// memory are their encoding. TestMessagesAreOctets checks that of all of them.

// octetsOf are those of the message body, or of the one that it points to.
func octetsOf(body any) []byte {
	v := reflect.ValueOf(body)
	if v.Kind() != reflect.Pointer {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		v = p
	}
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Type().Elem().Size())
}

func headerOctets(h *Header) []byte { return (*[HeaderLen]byte)(unsafe.Pointer(h))[:] }
