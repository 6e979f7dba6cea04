package tcp

import "github.com/vrnic/vrnic/netstack/internal/gvisor"

// Settle returns when what has come in for c has been dealt with.
func (c *Conn) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	_ = gvisor.HandleSegments(c.ep) // an error ends the connection, and with it the test
}

// Hold takes hold of c, as one of its calls does; LetGo lets it go.
//
// +checklocksignore: until LetGo.
func (c *Conn) Hold() { c.mu.Lock() }

// +checklocksignore: from Hold.
func (c *Conn) LetGo() { c.mu.Unlock() }

// Direct reports whether segments may come straight to c.
func (c *Conn) Direct() bool { return c.queue != nil }
