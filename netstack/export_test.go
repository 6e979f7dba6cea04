package netstack

// Arrive is arrive.
func (a *Attachment) Arrive(f *Frame, prompt bool) { a.arrive(f, prompt) }
