package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/netip"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/vnic"
)

var addr = netip.MustParsePrefix("10.77.0.1/24")

// TestMain is also a worker, on a device of its own.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "be-worker" {
		os.Exit(m.Run())
	}
	dev, err := vnic.New(vnic.Config{Name: "w", Addrs: []netip.Prefix{addr}})
	if err != nil {
		panic(err)
	}
	c, err := dev.Open(vnic.ContextConfig{})
	if err != nil {
		panic(err)
	}
	if err := Serve(context.Background(), c, os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func startWorker(t *testing.T) *Process {
	t.Helper()
	w, err := Start(os.Args[0], "be-worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func specOf(op load.Op) load.Spec {
	return load.Spec{Op: op, Size: 64, Depth: 4, QPs: 2, Pattern: load.Stream, Wait: load.Adaptive}
}

func contextOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// What is wrong there is an error here, in its words.
func TestErrorsComeBack(t *testing.T) {
	w := startWorker(t)
	ctx := contextOf(t)
	if _, err := w.Open(ctx, load.Spec{Op: "nonsense"}, load.A); err == nil ||
		!strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v", err)
	}
	e, err := w.Open(ctx, specOf(load.Write), load.A)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Connect(ctx, netip.MustParseAddrPort("10.77.0.1:9")); err == nil ||
		!strings.Contains(err.Error(), "10.77.0.1:9") {
		t.Errorf("%v", err)
	}
	if _, err := e.Listen(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("it listens at an address that it has not")
	}
	e.Close()
	if err := e.Check(); err == nil || !strings.Contains(err.Error(), "nothing is open") {
		t.Errorf("%v", err)
	}
}

func newDevice(t *testing.T) *vnic.Device {
	t.Helper()
	dev, err := vnic.New(vnic.Config{Name: "w", Addrs: []netip.Prefix{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// serve has a worker on pipes, on a device of this process.
func serve(t *testing.T, dev *vnic.Device) (ask func(string) reply) {
	t.Helper()
	c, err := dev.Open(vnic.ContextConfig{})
	if err != nil {
		t.Fatal(err)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		// t.Context() ends before the clean-up that ends it by its input
		done <- Serve(context.Background(), c, inR, outW)
		outW.Close()
	}()
	out := bufio.NewReader(outR)
	if line, err := out.ReadString('\n'); err != nil || line != readyLine+"\n" {
		t.Fatalf("%q, %v", line, err)
	}
	t.Cleanup(func() {
		inW.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.Close()
	})
	return func(line string) (r reply) {
		if _, err := io.WriteString(inW, line+"\n"); err != nil {
			t.Error(err)
			return r
		}
		got, err := out.ReadString('\n')
		if err != nil || json.Unmarshal([]byte(got), &r) != nil {
			t.Errorf("%q, %v", got, err)
		}
		return r
	}
}

// Two workers do all that two ends do, call by call.
func TestCalls(t *testing.T) {
	dev := newDevice(t)
	a, b := serve(t, dev), serve(t, dev)
	for _, op := range load.Ops {
		spec := specOf(op)
		if op.Atomic() {
			spec.Size = 8
		}
		at := netip.AddrPort{}
		for _, step := range []struct{ a, b call }{
			{call{Do: "open", Spec: spec, Role: load.A}, call{Do: "open", Spec: spec, Role: load.B}},
			{b: call{Do: "listen", Addr: addr.Addr()}},
			{call{Do: "connect"}, call{Do: "accept"}},
			{call{Do: "prepare", Seed: 5}, call{Do: "prepare", Seed: 5}},
			{call{Do: "move"}, call{Do: "move"}},
			{call{Do: "check"}, call{Do: "check"}},
			{call{Do: "run", Amount: load.Amount{Messages: 50}},
				call{Do: "run", Amount: load.Amount{Messages: 50}}},
			{call{Do: "close"}, call{Do: "close"}},
		} {
			if step.a.Do == "connect" {
				step.a.Remote = at
			}
			replies := make(chan reply, 2)
			n := 0
			for i, c := range []call{step.a, step.b} {
				if c.Do == "" {
					continue
				}
				line, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				n++
				go func() { replies <- []func(string) reply{a, b}[i](string(line)) }()
			}
			var sum load.Result
			for range n {
				r := <-replies
				if r.Error != "" {
					t.Fatalf("%s: %+v: %s", op, step, r.Error)
				}
				if r.Addr.IsValid() {
					at = r.Addr
				}
				if r.Result != nil {
					sum.Merge(*r.Result)
				}
			}
			if step.a.Do == "run" && (sum.Messages != 50 || sum.Times.Count() != 50 || sum.Elapsed() <= 0) {
				t.Errorf("%s: %+v", op, sum)
			}
		}
	}
	if r := a(`{"Do":"dance"}`); r.Error == "" {
		t.Error("it dances") // without an End
	}
	if r := a(
		`{"Do":"open","Role":"A","Spec":{"Op":"send","Size":64,"Depth":1,"QPs":1,"Pattern":"stream","Wait":"poll"}}`); r.Error != "" {
		t.Error(r.Error)
	}
	if r := a(`{"Do":"dance"}`); !strings.Contains(r.Error, "dance") {
		t.Errorf("%+v", r)
	}
}

// collecting says how much may be allocated before garbage is collected, in percent of what is
// alive.
func collecting() uint64 {
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return percent[0].Value.Uint64()
}

const never = math.MaxUint64 // of collecting

// No garbage is collected while a run lasts that asks for it.
func TestRunKeepsPools(t *testing.T) {
	dev := newDevice(t)
	a, b := serve(t, dev), serve(t, dev)
	must := func(ask func(string) reply, c call) reply {
		line, err := json.Marshal(c)
		if err != nil {
			t.Error(err)
		}
		r := ask(string(line))
		if r.Error != "" {
			t.Errorf("%s: %s", c.Do, r.Error)
		}
		return r
	}
	must(a, call{Do: "open", Spec: specOf(load.Send), Role: load.A})
	must(b, call{Do: "open", Spec: specOf(load.Send), Role: load.B})
	at := must(b, call{Do: "listen", Addr: addr.Addr()}).Addr
	accepted := make(chan reply)
	go func() { accepted <- must(b, call{Do: "accept"}) }()
	must(a, call{Do: "connect", Remote: at})
	<-accepted
	before := collecting()
	for _, keep := range []bool{true, false} {
		const messages = 1000 // more than have receives: A waits for B to run
		sent := make(chan reply)
		go func() {
			sent <- must(a, call{Do: "run", Amount: load.Amount{Messages: messages, KeepPools: keep}})
		}()
		for ctx := contextOf(t); keep && collecting() != never; runtime.Gosched() {
			if ctx.Err() != nil {
				t.Fatal("it collects")
			}
		}
		must(b, call{Do: "run", Amount: load.Amount{Messages: messages}})
		<-sent
		if got := collecting(); got != before {
			t.Errorf("%d percent behind a run, %d before", got, before)
		}
	}
}

func TestNonsenseEndsTheWorker(t *testing.T) {
	dev := newDevice(t)
	c, err := dev.Open(vnic.ContextConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), c, strings.NewReader("hello\n"), io.Discard); err == nil {
		t.Error("no error")
	}
}

// A worker that does not answer, or dies, is an error of whoever asked.
func TestWorkerDies(t *testing.T) {
	w := startWorker(t)
	ctx, cancel := context.WithCancel(contextOf(t))
	e, err := w.Open(ctx, specOf(load.Send), load.B)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Listen(addr.Addr()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, cancel) // nobody connects
	if err := e.Accept(ctx); err == nil {
		t.Error("no error")
	}
	if _, err := e.Run(contextOf(t), load.Amount{Messages: 1}); err == nil {
		t.Error("no error after its end")
	}
	e.Close()
}
