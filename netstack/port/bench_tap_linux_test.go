package port_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// BenchmarkTAPStream moves 1 MiB at a time between the stack and kernel TCP.
func BenchmarkTAPStream(b *testing.B) {
	for _, plain := range []bool{false, true} {
		for _, toKernel := range []bool{true, false} {
			b.Run(fmt.Sprintf("plain=%v/tokernel=%v", plain, toKernel), func(b *testing.B) {
				ns, _, st := tapPair(b, 1500, plain)
				k, c := kernelPair(b, ns, st, kernelAddrs[0].Addr())
				defer k.Close()
				defer c.Close()
				b.SetBytes(netstacktest.Chunk)
				b.ReportAllocs()
				n := int64(b.N) * netstacktest.Chunk
				errc := make(chan error)
				bell := netstacktest.NewBell(c)
				var err error
				if toKernel {
					go func() { errc <- netstacktest.Write(c, bell, n) }()
					_, err = io.CopyN(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{k}, n)
				} else {
					go func() { errc <- netstacktest.Read(c, bell, n) }()
					buf := make([]byte, netstacktest.Chunk)
					for range b.N {
						if _, err = k.Write(buf); err != nil {
							break
						}
					}
				}
				if err = errors.Join(err, <-errc); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// BenchmarkTAPEcho sends 64 octets to kernel TCP and back.
func BenchmarkTAPEcho(b *testing.B) {
	ns, _, st := tapPair(b, 1500, false)
	k, c := kernelPair(b, ns, st, kernelAddrs[0].Addr())
	defer k.Close()
	defer c.Close()
	b.ReportAllocs()
	errc := make(chan error)
	go func() {
		buf := make([]byte, 64)
		for range b.N {
			_, err := io.ReadFull(k, buf)
			if err == nil {
				_, err = k.Write(buf)
			}
			if err != nil {
				errc <- err
				return
			}
		}
		errc <- nil
	}()
	bell := netstacktest.NewBell(c)
	for range b.N {
		if err := errors.Join(netstacktest.Write(c, bell, 64), netstacktest.Read(c, bell,
			64)); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-errc; err != nil {
		b.Fatal(err)
	}
}
