// Kv is a key-value store whose server does nothing: clients read its table by RDMA Read, and
// change it by RDMA Write, under locks that they take by atomics.
//
//	kv [-device NAME] serve ADDR:PORT
//	kv [-device NAME] put ADDR:PORT KEY VALUE
//	kv [-device NAME] get ADDR:PORT KEY
//
// Try it beside a daemon with two devices:
//
//	kv -device vrnic0 serve 10.77.0.2:7000 &
//	kv -device vrnic1 put 10.77.0.2:7000 colour blue
//	kv -device vrnic1 get 10.77.0.2:7000 colour
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

const usage = `usage: kv [-device NAME] serve ADDR:PORT
       kv [-device NAME] put ADDR:PORT KEY VALUE
       kv [-device NAME] get ADDR:PORT KEY
`

func main() {
	log.SetFlags(0)
	log.SetPrefix("kv: ")
	device := flag.String("device", "", "the `name` of a device; without it the daemon's first")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	args := flag.Args()
	if len(args) < 2 || len(args) != map[string]int{"serve": 2, "put": 4, "get": 3}[args[0]] {
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
		if args[0] == "serve" {
			return serve(ctx, dev, addr)
		}
		return withStore(ctx, dev, addr, func(s *store) error {
			if args[0] == "put" {
				return s.put(ctx, args[2], args[3])
			}
			value, err := s.get(ctx, args[2])
			if err == nil {
				fmt.Println(value)
			}
			return err
		})
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
