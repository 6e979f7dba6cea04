package netstack

// Endpoints is how many sockets the stack has: those that are open or listen, and those of closed
// connections that TCP still has to remember.
func (s *Stack) Endpoints() int {
	return len(s.st.RegisteredEndpoints()) + len(s.st.CleanupEndpoints())
}
