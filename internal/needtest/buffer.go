package needtest

import (
	"bytes"
	"sync"
)

// A Buffer is what a process or a logger writes while a test looks. The zero Buffer is ready.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // +checklocks:mu
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that has been written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
