package tcp

import (
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// maxPayloadPath leads from a tcp.Endpoint to the sender's MaxPayloadSize: the field snd, a pointer,
// and the field behind it. gVisor keeps the number up to date (path MTU, options) but has no method
// that tells it, so it is read by reflection, under the endpoint's lock. A test compares it with
// the segments on the wire.
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

// EMSS is how many octets TCP puts into one segment at present, after options (RFC 5044, section
// 4.1; RFC 1122, section 4.2.2.6). It can fall during a connection, when the path's MTU does, and to
// very little if somebody on the path lies about that. 0 if the connection is gone before it was
// established.
func (c *Conn) EMSS() int {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	snd := reflect.ValueOf(c.ep).Elem().Field(sndField)
	if snd.IsNil() {
		return 0
	}
	return int(snd.Elem().FieldByIndex(maxPayloadPath).Int())
}
