package sctphost

// RenewAfter is how long headers are used that IP has made.
const RenewAfter = renewAfter

// IPPackets are those of s, and others, that gVisor's IP has had to do with.
func (s *Host) IPPackets() (in, out uint64) {
	st := s.carrier.(*stackCarrier).st.Stats().IP
	return st.PacketsReceived.Value(), st.PacketsSent.Value()
}
