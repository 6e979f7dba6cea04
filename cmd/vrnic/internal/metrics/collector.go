package metrics

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/shm/server"
)

// A Collector gives what read has read of a daemon.
type Collector struct{ read func() daemon.Metrics }

// NewCollector makes a collector that calls read for each scrape.
func NewCollector(read func() daemon.Metrics) *Collector { return &Collector{read} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range all {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	m := c.read()
	for i := range m.Devices {
		device(ch, &m.Devices[i])
	}
	for _, p := range m.Ports {
		for _, way := range []struct {
			name                  string
			frames, octets, drops uint64
		}{{"in", p.RxFrames, p.RxOctets, p.RxDrops}, {"out", p.TxFrames, p.TxOctets, p.TxDrops}} {
			portFrames.send(ch, float64(way.frames), p.Name, p.Kind, way.name)
			portBytes.send(ch, float64(way.octets), p.Name, p.Kind, way.name)
			portDrops.send(ch, float64(way.drops), p.Name, p.Kind, way.name)
		}
	}
	sessions.send(ch, float64(m.Server.Sessions))
	sessionsAccepted.send(ch, float64(m.Server.Accepted))
	sessionsRefused.send(ch, float64(m.Server.Refused))
	violations.send(ch, float64(m.Server.Violations))
	for _, l := range m.Limits {
		limits.send(ch, float64(l.Value), l.Name)
	}
	for _, p := range m.Pools {
		limitUsed.send(ch, float64(p.Used), p.Limit)
	}
	most(ch, m.Clients)
}

// most gives the largest share of any session, which says how near the limits of sessions are.
func most(ch chan<- prometheus.Metric, clients []server.ClientRow) {
	names := []string{"pds", "mrs", "mems", "mem-bytes", "cqs", "qps", "srqs", "mws", "cm-ids",
		"ring-bytes"}
	high := make([]int64, len(names))
	for _, c := range clients {
		for i, n := range []int64{int64(c.PDs), int64(c.MRs), int64(c.Mems), c.MemSize, int64(c.CQs),
			int64(c.QPs), int64(c.SRQs), int64(c.MWs), int64(c.IDs), c.Rings} {
			high[i] = max(high[i], n)
		}
	}
	for i, name := range names {
		limitMost.send(ch, float64(high[i]), name)
	}
}

// device gives the series of a device.
func device(ch chan<- prometheus.Metric, d *daemon.DeviceMetrics) {
	i, name := &d.Info, d.Info.Name
	deviceInfo.send(ch, 1, name, d.Transport, i.MAC, strconv.Itoa(i.MTU))
	up := 0.0
	if d.Active {
		up = 1
	}
	deviceUp.send(ch, up, name)
	for _, o := range []struct {
		kind string
		n    int
	}{{"context", i.Contexts}, {"pd", i.PDs}, {"mr", i.MRs}, {"mw", i.MWs}, {"cq", i.CQs},
		{"srq", i.SRQs}, {"qp", i.QPs}, {"cm_id", i.CMIDs}, {"ah", i.AHs}, {"key", i.Keys},
		{"multicast_group", i.Groups}} {
		objects.send(ch, float64(o.n), name, o.kind)
	}
	for k, n := range d.QPs {
		qps.send(ch, float64(n), name, strings.ToLower(k.Type.String()), k.State.String())
	}
	requests.send(ch, float64(i.HalfOpen), name, "half_open")
	requests.send(ch, float64(i.Pending), name, "pending")
	for _, r := range []struct {
		limit string
		n     uint64
	}{{"peer", i.Refused.Peer}, {"backlog", i.Refused.Backlog}, {"session", i.Refused.Context},
		{"half_open", i.Refused.HalfOpen}, {"pending", i.Refused.Pending}} {
		refused.send(ch, float64(r.n), name, r.limit)
	}
	reaped.send(ch, float64(i.Reaped), name)
	if l := d.Latency; l != nil {
		for kind, operation := range latency.Kinds {
			durations.sendHistogram(ch, l.Histogram(kind), name, operation)
		}
	}
	each(reflect.ValueOf(d.Stat), func(field string, n float64) {
		if s := counters[field]; s.family != nil {
			s.family.send(ch, n, append([]string{name}, s.labels...)...)
		}
	})
	if m := i.CMMessages; m != nil {
		for _, way := range []struct {
			name string
			n    []uint64
		}{{"in", m.Received[:]}, {"in_duplicate", m.Duplicates[:]}, {"out", m.Sent[:]},
			{"out_retry", m.Retries[:]}} {
			for kind, n := range way.n {
				cmMessages.send(ch, float64(n), name, way.name, daemon.CMMessageKinds[kind])
			}
		}
	}
}

// each gives the numbers of a row by their names in JSON, those of what it embeds too.
func each(row reflect.Value, f func(field string, n float64)) {
	for i := range row.NumField() {
		v, t := row.Field(i), row.Type().Field(i)
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				continue
			}
			v = v.Elem()
		}
		name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
		switch {
		case t.Anonymous:
			each(v, f)
		case name == "":
		case v.CanUint():
			f(name, float64(v.Uint()))
		case v.CanInt():
			f(name, float64(v.Int()))
		}
	}
}
