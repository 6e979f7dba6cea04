// Rpc calls functions of another process: each call is a Send, and so is its answer.
//
//	rpc [-device NAME] serve ADDR:PORT
//	rpc [-device NAME] call ADDR:PORT METHOD ARGUMENT...
//
// The server takes any number of clients with one shared receive queue and one completion queue,
// and sleeps while there is nothing to do. Try it beside a daemon with two devices:
//
//	rpc -device vrnic0 serve 10.77.0.2:7000 &
//	rpc -device vrnic1 call 10.77.0.2:7000 sum '1 2 3' '40 2'
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// maxMessage is the longest request, and the longest answer, in octets.
const maxMessage = 1024

const usage = `usage: rpc [-device NAME] serve ADDR:PORT
       rpc [-device NAME] call ADDR:PORT METHOD ARGUMENT...
`

func main() {
	log.SetFlags(0)
	log.SetPrefix("rpc: ")
	device := flag.String("device", "", "the `name` of a device; without it the daemon's first")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	args := flag.Args()
	isServer := len(args) == 2 && args[0] == "serve"
	if !isServer && (len(args) < 4 || args[0] != "call") {
		flag.Usage()
		os.Exit(2)
	}
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		log.Print(err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = withDevice(*device, func(dev rdma.Device) error {
		if isServer {
			return serve(ctx, dev, addr)
		}
		return call(ctx, dev, addr, args[2], args[3:])
	})
	if err != nil && ctx.Err() == nil { // an interrupt is no failure
		log.Fatal(err)
	}
}

// withDevice calls f with a device of the daemon. All that f makes on it goes with the client.
func withDevice(name string, f func(rdma.Device) error) error {
	client, err := shm.Dial("") // the socket of $VRNIC_SOCKET, or the usual one
	if err != nil {
		return err
	}
	defer client.Close()
	dev, err := client.Open(name)
	if err != nil {
		return err
	}
	return f(dev)
}

// next waits for the next completion of cq.
func next(ctx context.Context, cq rdma.CQ) (rdma.WC, error) {
	var wc [1]rdma.WC
	for {
		for _, arm := range []bool{true, false} {
			if n, err := cq.Poll(wc[:]); n > 0 || err != nil {
				return wc[0], err
			}
			// Only what comes after Arm raises an event: look once more before sleeping.
			if arm {
				if err := cq.Arm(false); err != nil {
					return wc[0], err
				}
			}
		}
		if err := cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}
