package netstack

// Settle returns when what has come in for c has been dealt with.
func (c *TCPConn) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	_ = handleSegments(c.ep) // an error ends the connection, and with it the test
}

// Hold takes hold of c, as one of its calls does; LetGo lets it go.
func (c *TCPConn) Hold()  { c.mu.Lock() }
func (c *TCPConn) LetGo() { c.mu.Unlock() }

// Direct reports whether segments may come straight to c.
func (c *TCPConn) Direct() bool { return c.direct != nil }
