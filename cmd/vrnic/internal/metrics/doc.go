// Package metrics shows the totals of a daemon to Prometheus, or to whatever else reads its format
// or that of OpenMetrics: a collector over daemon.Metrics, and the listener that serves it.
//
// What there is of a daemon bounds how many series there are: devices, ports and limits, and states
// of queue pairs. None is of a single queue pair, program, user or peer.
package metrics
