package netstack

// Arrive is arrive.
func (a *Attachment) Arrive(f *Frame, prompt bool) { a.arrive(f, prompt, nil) }

// Settle returns when what has come in for c has been dealt with.
func (c *TCPConn) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	_ = handleSegments(c.ep) // an error ends the connection, and with it the test
}
