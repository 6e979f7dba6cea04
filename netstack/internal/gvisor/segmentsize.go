package gvisor

import (
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// RFC 5044 wants each FPDU to fill a TCP segment, so the device has to know how long segments are
// at present. gVisor keeps the number up to date (path MTU, options) but has no method that tells
// it: the option MaxSegOption answers with a constant. Without this FPDUs would be cut at the ends
// of segments.
//
// Upstream: transport/tcp/endpoint.go, Endpoint.snd, a pointer, and in what it points to
// MaxPayloadSize (state.go, TCPSenderState), which snd.go, updateMaxPayloadSize, sets. They are
// read by reflection; where one is missing the program does not start.
var sndField, maxPayloadPath = func() (int, []int) {
	snd, ok := reflect.TypeFor[tcp.Endpoint]().FieldByName("snd")
	if !ok || snd.Type.Kind() != reflect.Pointer || len(snd.Index) != 1 {
		panic("netstack: gVisor's tcp.Endpoint has changed: no sender")
	}
	size, ok := snd.Type.Elem().FieldByName("MaxPayloadSize")
	if !ok || size.Type.Kind() != reflect.Int {
		panic("netstack: gVisor's tcp sender has changed: no MaxPayloadSize")
	}
	return snd.Index[0], size.Index
}()

// SegmentSize is how many octets TCP puts into one segment of ep at present, after options; 0 if
// the connection is gone before it was established.
func SegmentSize(ep *tcp.Endpoint) int {
	ep.LockUser()
	defer ep.UnlockUser()
	snd := reflect.ValueOf(ep).Elem().Field(sndField)
	if snd.IsNil() {
		return 0
	}
	return int(snd.Elem().FieldByIndex(maxPayloadPath).Int())
}
