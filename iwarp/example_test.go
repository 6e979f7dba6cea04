package iwarp_test

import (
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// Two ends connect over a transport in memory, and one sends the other a message. Each segment is
// shown as its receiver sees it.
func Example() {
	client, server := iwarptest.NewPair(iwarptest.Link{})

	// The Request goes out.
	in, _ := iwarp.NewInitiator(iwarp.DefaultStartConfig(), []byte("hello"))
	n, _ := client.WriteFrom(in)
	in.Commit(n)

	// The server looks at it and accepts.
	re, _ := iwarp.NewResponder(iwarp.DefaultStartConfig())
	server.ReadInto(re)
	req, _ := re.Request()
	fmt.Printf("asked with %q\n", req.PrivateData)
	params, _ := re.Accept(8, 8, []byte("welcome"))
	show := func(who string) func(bool, []byte) {
		return func(sent bool, seg []byte) {
			if !sent {
				fmt.Printf("%s: %s\n", who, iwarp.DescribeSegment(seg))
			}
		}
	}
	hs := newHost()
	hs.posted = [][]byte{make([]byte, 64)}
	es := iwarp.NewEndpoint(params, hs, iwarp.Config{EMSS: server.EMSS(), Trace: show("server")})
	n, _ = server.WriteFrom(re)
	re.Commit(n)

	// The client is in Full Operation with the Reply.
	client.ReadInto(in)
	params, _ = in.Result()
	fmt.Println(params)
	ec := iwarp.NewEndpoint(params, newHost(), iwarp.Config{EMSS: client.EMSS(),
		Trace: show("client")})
	_ = ec.PostSend(1, iwarp.OpSend, 0, &payload{b: []byte("a message")}, 9)
	n, _ = client.WriteFrom(ec)
	ec.Commit(n)

	server.ReadInto(es)
	fmt.Println(es.Err(), hs.received[0].Length)
	// Output:
	// asked with "hello"
	// initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=7
	// server: RDMA Write stag=0x00000001 to=0x0 last len=0
	// server: Send qn=0 msn=1 mo=0 last len=9
	// <nil> 9
}
