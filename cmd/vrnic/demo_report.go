package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// demoTotals is how much the active end of both turns has moved, and in how many messages.
func demoTotals(steps ...[]demoEvent) (octets, messages int) {
	for _, part := range steps {
		for _, e := range part {
			octets += e.Size * e.Messages
			messages += e.Messages
		}
	}
	return octets, messages
}

// demoQP is what the demo shows of a row of `vrnic show qp`.
type demoQP struct {
	Dev, State, Transport, Local, Remote, RTR string
	QPN                                       uint32
	MPA                                       int
	Enhanced, CRC                             bool
	IRD, ORD, EMSS, PID                       int
}

// demoStat is what the demo shows of a row of `vrnic stat`.
type demoStat struct {
	Kind, Dev, Port                        string
	QPN                                    uint32
	PID                                    int
	Sends, Writes, Reads, Receives, Errors uint64
	InWrites                               uint64 `json:"in_writes"`
	InReads                                uint64 `json:"in_reads"`
	SegmentsIn                             uint64 `json:"tcp_segments_in"`
	SegmentsOut                            uint64 `json:"tcp_segments_out"`
	Retransmits                            uint64 `json:"tcp_retransmits"`
	RxFrames                               uint64 `json:"rx_frames"`
	RxOctets                               uint64 `json:"rx_octets"`
	TxFrames                               uint64 `json:"tx_frames"`
	TxOctets                               uint64 `json:"tx_octets"`
	RxDrops                                uint64 `json:"rx_drops"`
	TxDrops                                uint64 `json:"tx_drops"`
}

// parseDemoRows reads the rows of the demo's own QPs and counters.
func parseDemoRows[T any](raw []json.RawMessage) ([]T, error) {
	rows := make([]T, len(raw))
	for i := range raw {
		if err := json.Unmarshal(raw[i], &rows[i]); err != nil {
			return nil, fmt.Errorf("the daemon sent the row %s: %w", raw[i], err)
		}
	}
	return rows, nil
}

// report prints what was measured and seen.
func (d *demo) report(w io.Writer, client, server []demoEvent, seen demoSeen) error {
	octets, messages := demoTotals(client, server)
	if want := 2 * 3 * len(demoSizes) * demoMessages; messages != want || len(client) != len(server) {
		return fmt.Errorf("%d messages were verified, want %d", messages, want)
	}
	qps, err := parseDemoRows[demoQP](seen.qps)
	if err != nil {
		return err
	}
	stats, err := parseDemoRows[demoStat](seen.stats)
	if err != nil {
		return err
	}
	if len(qps) != 2 {
		return fmt.Errorf("the daemon had %d QPs, want one of the client and one of the server", len(qps))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Processes   daemon %d, client %d on device %s, server %d on device %s\n",
		d.daemon.cmd.Process.Pid,
		d.client.cmd.Process.Pid, demoClientDevice, d.server.cmd.Process.Pid, demoServerDevice)
	fmt.Fprintf(&b, "\nHandshake   MPA as the two ends have agreed on it (RFC 5044, RFC 6581)\n")
	for _, qp := range qps {
		fmt.Fprintf(&b, "  %s\n", qp.handshake())
	}
	fmt.Fprintf(&b, "\nData        app, ring, daemon, iWARP over TCP, daemon, app; median until "+
		"answered, or Read\n")
	demoTable(&b, func(t io.Writer) {
		fmt.Fprintf(t, "\tsize\tclient's\t\tserver's\t\t\n")
		for i, e := range client {
			f := server[i]
			fmt.Fprintf(t, "%s\t%s\t%d verified\t%s\t%d verified\t%s\t\n", e.Op, demoOctets(e.Size),
				e.Messages, demoTime(e.Median), f.Messages, demoTime(f.Median))
		}
	})
	fmt.Fprintf(&b, "\nQPs         as vrnic show qp has them, while connected\n")
	demoTable(&b, func(t io.Writer) {
		for _, qp := range qps {
			fmt.Fprintf(t, "%s\tqpn %d\t%s\t%s\t%s\t-> %s\temss %d\tpid %d\t\n",
				qp.Dev, qp.QPN, qp.State, qp.Transport, qp.Local, qp.Remote, qp.EMSS, qp.PID)
		}
	})
	fmt.Fprintf(&b, "\nCounters    as vrnic stat has them\n")
	demoTable(&b, func(t io.Writer) {
		for _, s := range stats {
			switch s.Kind {
			case "qp":
				fmt.Fprintf(t, "%s\tqpn %d\tsends %d\twrites %d\treads %d\tin: sends %d\twrites %d\treads "+
					"%d\terrors %d\t\n",
					s.Dev, s.QPN, s.Sends, s.Writes, s.Reads, s.Receives, s.InWrites, s.InReads, s.Errors)
			}
		}
	})
	demoTable(&b, func(t io.Writer) {
		for _, s := range stats {
			switch s.Kind {
			case "dev":
				fmt.Fprintf(t, "%s\ttcp\tsegments in %d\tout %d\tretransmitted %d\t\n", s.Dev, s.SegmentsIn,
					s.SegmentsOut, s.Retransmits)
			case "port":
				fmt.Fprintf(t, "%s\tport\tframes in %d\tout %d\tdropped %d\t\n", s.Port, s.RxFrames, s.TxFrames,
					s.RxDrops+s.TxDrops)
			}
		}
	})
	fmt.Fprintf(&b, "\nPASS  %d messages, %.1f MB, verified; disconnected, ended and cleaned up; "+
		"%.1f s\n",
		messages, float64(octets)/1e6, time.Since(d.start).Seconds())
	_, err = io.WriteString(w, b.String())
	return err
}

func (qp demoQP) handshake() string {
	kind, crc, rtr := "", "off", "none"
	if qp.Enhanced {
		kind = ", enhanced"
	}
	if qp.CRC {
		crc = "on"
	}
	if qp.RTR != "" {
		rtr = "zero-length " + qp.RTR
	}
	return fmt.Sprintf("%-6s revision %d%s, CRC %s, IRD %d, ORD %d, ready to receive: %s", qp.Dev,
		qp.MPA, kind, crc, qp.IRD, qp.ORD, rtr)
}

// demoTable prints the lines of fill, whose cells end with tabs, in columns.
func demoTable(b *strings.Builder, fill func(t io.Writer)) {
	var cells strings.Builder
	t := tabwriter.NewWriter(&cells, 0, 0, 2, ' ', 0)
	fill(t)
	_ = t.Flush() // a Builder takes everything
	for line := range strings.Lines(cells.String()) {
		b.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
}

func demoTime(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.0f us", float64(d)/float64(time.Microsecond))
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func demoOctets(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
