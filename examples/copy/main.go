// Copy copies files to another machine, by RDMA Write with immediate data.
//
//	copy [-device NAME] receive ADDR:PORT DIRECTORY
//	copy [-device NAME] send ADDR:PORT FILE...
//
// Each Write puts a piece of the file into the receiver's memory, and the immediate data with it
// says how long the piece is. Try it beside a daemon with two devices:
//
//	copy -device vrnic0 receive 10.77.0.2:7000 /tmp &
//	copy -device vrnic1 send 10.77.0.2:7000 README.md
//
// The program in verbs-c does the same in C, and the two understand each other.
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

const usage = `usage: copy [-device NAME] receive ADDR:PORT DIRECTORY
       copy [-device NAME] send ADDR:PORT FILE...
`

func main() {
	log.SetFlags(0)
	log.SetPrefix("copy: ")
	device := flag.String("device", "", "the `name` of a device; without it the daemon's first")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	args := flag.Args()
	isReceiver := len(args) == 3 && args[0] == "receive"
	if !isReceiver && (len(args) < 3 || args[0] != "send") {
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
		if isReceiver {
			return receiveAll(ctx, dev, addr, args[2])
		}
		for _, path := range args[2:] {
			if err := send(ctx, dev, addr, path); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
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
