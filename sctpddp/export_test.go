package sctpddp

// SinkOf is what was attached to s.
func SinkOf(s *Session) Sink { return s.sink }

// ArrivalsFit says whether each transition that a message leads to is one that is drawn.
func ArrivalsFit() bool {
	for from, kinds := range arrivals {
		for _, to := range kinds {
			if State(from) != to && stateNext[from]&(1<<to) == 0 {
				return false
			}
		}
	}
	return len(arrivals) == len(stateNext) && len(stateNext) == len(stateNames)
}

// SetSink and SetAssoc put another one in its place.
func SetSink(s *Session, k Sink)         { s.sink = k }
func SetAssoc(s *Session, a Association) { s.assoc = a }

// Held is how many octets of its budget m has in use, and Asked how many sessions wait for an
// answer.
func Held(m *Mux) int64 {
	b := m.pool.(*budget)
	return b.all - b.left.Load()
}
func Asked(m *Mux) int { return m.pool.Asked() }
