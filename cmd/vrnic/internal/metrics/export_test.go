package metrics

import (
	"maps"
	"slices"
)

// Counters are the counters of devices that go somewhere.
func Counters() []string { return slices.Collect(maps.Keys(counters)) }

const (
	MaxConnections = maxConnections
	MaxScrapes     = maxScrapes
)
