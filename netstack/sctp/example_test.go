package sctp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp"
)

// Two Endpoints whose packets are carried by hand, on a clock that stands still.
func Example() {
	now := time.Unix(1, 0)
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	var ends []*sctp.Endpoint
	for range addrs {
		e, err := sctp.NewEndpoint(sctp.Config{})
		if err != nil {
			panic(err)
		}
		ends = append(ends, e)
	}
	if err := ends[1].Listen(5043, sctp.ListenConfig{}); err != nil {
		panic(err)
	}
	a, err := ends[0].Dial(now, sctp.DialConfig{LocalPort: 4000, Locals: addrs[:1], RemotePort: 5043,
		Remotes: addrs[1:]})
	if err != nil {
		panic(err)
	}
	carry := func() {
		for busy := true; busy; {
			busy = false
			for i, e := range ends {
				for {
					d, ok := e.Output(now, nil)
					if !ok {
						break
					}
					busy = true
					ends[1-i].Input(now, sctp.Packet{Src: d.Src, Dst: d.Dst, Data: d.Data})
				}
				for {
					ev, ok := e.NextEvent()
					if !ok {
						break
					}
					switch ev.Kind {
					case sctp.EventUp:
						fmt.Println(addrs[i], "is up")
					case sctp.EventMessage:
						fmt.Printf("%v got %q on stream %d\n", addrs[i], ev.Msg.Append(nil), ev.Msg.Stream)
						ev.Msg.Release()
					case sctp.EventDown:
						fmt.Println(addrs[i], "is down", ev.Err)
					default:
					}
				}
			}
		}
	}
	carry()
	if _, err := a.Send(now, sctp.SendOptions{Stream: 3, Unordered: true},
		strings.NewReader("hello")); err != nil {
		panic(err)
	}
	carry()
	if err := a.Shutdown(now); err != nil {
		panic(err)
	}
	carry()
	// Output:
	// 10.0.0.2 is up
	// 10.0.0.1 is up
	// 10.0.0.2 got "hello" on stream 3
	// 10.0.0.1 is down <nil>
	// 10.0.0.2 is down <nil>
}
