// Package search has no code but tests: they walk through every interleaving of the steps by which
// programs and the daemon wake each other, and by which programs move messages past the daemon.
// What it walks through is a model of package ring and of the C libraries, not the code itself.
package search
