package daemon

import "errors"

// A closers is what has been made and must be undone, last made first undone.
type closers struct {
	list []func() error
}

func (c *closers) add(f func() error) { c.list = append(c.list, f) }

// close undoes all; it may be called again.
func (c *closers) close() error {
	var errs []error
	for len(c.list) > 0 {
		last := len(c.list) - 1
		f := c.list[last]
		c.list = c.list[:last]
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
