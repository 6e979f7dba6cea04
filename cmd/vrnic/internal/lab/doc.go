// Package lab is what a daemon does to its network on purpose, to see what programs make of it:
// impairments, as docs/laboratory.md tells users. What is done to packets is
// netstack/port/impair's; here it is said to which, and the daemon says what stands behind a name.
package lab
