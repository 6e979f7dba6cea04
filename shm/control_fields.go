package shm

import (
	"encoding/binary"
	"reflect"
)

// The messages are structs of integers and of arrays of them, in host byte order without padding: as
// encoding/binary writes them, which however takes arrays of octets one octet at a time. A connection
// has half a dozen messages with room for 512 octets of private data.

// appendFields appends v, which can be addressed.
func appendFields(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Uint8:
		return append(b, byte(v.Uint()))
	case reflect.Uint16:
		return binary.NativeEndian.AppendUint16(b, uint16(v.Uint()))
	case reflect.Uint32:
		return binary.NativeEndian.AppendUint32(b, uint32(v.Uint()))
	case reflect.Uint64:
		return binary.NativeEndian.AppendUint64(b, v.Uint())
	case reflect.Int32:
		return binary.NativeEndian.AppendUint32(b, uint32(v.Int()))
	case reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(b, v.Bytes()...)
		}
		for i := range v.Len() {
			b = appendFields(b, v.Index(i))
		}
		return b
	case reflect.Struct:
		for i := range v.NumField() {
			b = appendFields(b, v.Field(i))
		}
		return b
	default:
		panic("shm: a message with a " + v.Type().String())
	}
}

// decodeFields fills v from the front of b, which is long enough, and returns what is behind.
func decodeFields(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Uint8:
		v.SetUint(uint64(b[0]))
		return b[1:]
	case reflect.Uint16:
		v.SetUint(uint64(binary.NativeEndian.Uint16(b)))
		return b[2:]
	case reflect.Uint32:
		v.SetUint(uint64(binary.NativeEndian.Uint32(b)))
		return b[4:]
	case reflect.Uint64:
		v.SetUint(binary.NativeEndian.Uint64(b))
		return b[8:]
	case reflect.Int32:
		v.SetInt(int64(int32(binary.NativeEndian.Uint32(b))))
		return b[4:]
	case reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return b[copy(v.Bytes(), b):]
		}
		for i := range v.Len() {
			b = decodeFields(b, v.Index(i))
		}
		return b
	case reflect.Struct:
		for i := range v.NumField() {
			b = decodeFields(b, v.Field(i))
		}
		return b
	default:
		panic("shm: a message with a " + v.Type().String())
	}
}

// addressable is the struct body, or the one that it points to.
func addressable(body any) reflect.Value {
	v := reflect.ValueOf(body)
	if v.Kind() == reflect.Pointer {
		return v.Elem()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Elem()
}
