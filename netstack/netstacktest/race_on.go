//go:build race

package netstacktest

// RaceEnabled says that the race detector is on: tests move less then.
const RaceEnabled = true
