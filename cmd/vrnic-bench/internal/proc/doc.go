// Package proc runs the other processes of a measurement, and asks them.
package proc
