package meter

import (
	"context"
	"time"
)

// Pause lets d pass, in which others work and are measured. It returns early, with ctx's error, if
// ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
