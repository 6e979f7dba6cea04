package daemon_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
)

// What a client asks for of MPA goes through its rings and comes out on both ends, as LIST shows.
func TestMPAParams(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	yes := func(s *string) string {
		if s == nil {
			return "-"
		}
		return *s
	}
	for _, tt := range []struct {
		a, b rdma.MPAParam
		want string // of both ends: revision, CRC, markers, RTR
	}{
		{rdma.MPAParam{}, rdma.MPAParam{}, "2 true - write; 2 true - write+read+send"},
		{rdma.MPAParam{Markers: true, CRC: rdma.CRCOff}, rdma.MPAParam{CRC: rdma.CRCOff},
			"2 false in write; 2 false out write+read+send"},
		{rdma.MPAParam{RTR: rdma.RTRRead | rdma.RTRSend, MULPDU: 64768}, rdma.MPAParam{Markers: true,
			RTR: rdma.RTRRead}, "2 true out read; 2 true in read"},
		{rdma.MPAParam{ClientServer: true, CRC: rdma.CRCRequired}, rdma.MPAParam{},
			"2 true - -; 2 true - -"},
		{rdma.MPAParam{Revision: 1, Markers: true}, rdma.MPAParam{Markers: true, MULPDU: 1000},
			"1 true both -; 1 true both -"},
	} {
		t.Run(fmt.Sprintf("%+v to %+v", tt.a, tt.b), func(t *testing.T) {
			a := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 1<<16)
			b := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic1"), 1<<16)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			l, err := b.Dev.Listen(daemontest.Addr(t, b.Dev, false, 0), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			accepted := make(chan error, 1)
			go func() {
				req, err := l.Next(ctx)
				if err == nil {
					b.Conn, err = req.Accept(ctx, b.QP, rdma.ConnParam{MPA: tt.b})
				}
				accepted <- err
			}()
			a.Conn, err = a.Dev.Connect(ctx, a.QP, l.Addr(), rdma.ConnParam{MPA: tt.a})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-accepted; err != nil {
				t.Fatal(err)
			}
			ends := map[string]string{} // by device: QPs are numbered by each
			for _, q := range listQPs(t, c) {
				ends[q.Dev] = fmt.Sprintf("%d %t %s %s", q.MPA, q.CRC, yes(q.Markers), yes(q.RTR))
			}
			if got := ends[a.Dev.Name()] + "; " + ends[b.Dev.Name()]; got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			b.Recv(1, 0, 1<<16)
			a.Fill(0, 50_000, 3)
			a.Send(2, 0, 50_000)
			a.WantOK("the Send", 2, rdma.WCSend)
			b.WantOK("the receive", 1, rdma.WCRecv)
			b.Check("the message", 0, 50_000, 3)
		})
	}
}
