package netstack

// Pause has TCP handle what is queued, and returns when that is done; what comes later waits for
// Resume. Timers go on, and so does all else. It is for tests that decide when something happens:
// the goroutines of gVisor's TCP then block in a way that package testing/synctest knows, unlike
// when they are idle. Pause and Resume take turns, and Resume comes before Close.
func (s *Stack) Pause() { s.st.Pause() }

// Resume lets TCP go on after Pause.
func (s *Stack) Resume() { s.st.Resume() }

// Settle returns when gVisor has dealt with what came in before and needs an answer at once: ARP,
// neighbour discovery, ICMP. It is for tests that bring the frames themselves, and whose clock must
// not go on until the answers are on their way.
func (s *Stack) Settle() { s.link.pending.Wait() }
