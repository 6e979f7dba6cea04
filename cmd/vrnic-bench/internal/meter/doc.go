// Package meter measures what a run costs: processor time, allocations, system calls.
package meter
