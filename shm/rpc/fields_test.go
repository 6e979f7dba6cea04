package rpc

import (
	"encoding/binary"
	"reflect"
)

// appendFields appends v, which can be addressed, field by field: structs of integers and of arrays
// of them, in host byte order.
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
