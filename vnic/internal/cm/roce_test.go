package cm

import "testing"

// A program may destroy its QP while the peer's answer to the disconnect is on its way to the id:
// both end the connection, and one DISCONNECTED tells. cmtime counts them. RCM-040.
func TestDisconnectedOnce(t *testing.T) {
	var told []EventType
	id := &ID{state: stateConnected, handler: func(e Event) { told = append(told, e.Type) }}
	x := &exchange{id: id}
	x.disconnected(nil) // the QP is gone
	x.disconnected(nil) // the peer has answered
	id.mu.Lock()
	defer id.mu.Unlock()
	if len(told) != 1 || told[0] != Disconnected || id.state != stateDisconnected {
		t.Errorf("told %v, and the id is in state %d", told, id.state)
	}
}
