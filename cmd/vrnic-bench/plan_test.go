package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
)

// planned is the plan of a command line.
func planned(t *testing.T, args string) plan {
	t.Helper()
	var p plan
	app := newApp(nil, &bytes.Buffer{}, &bytes.Buffer{})
	app.Action = func(c *cli.Context) (err error) {
		p, err = planOf(c)
		return err
	}
	if err := app.Run(append([]string{"vrnic-bench"}, strings.Fields(args)...)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return p
}

func TestPlanWithoutFlags(t *testing.T) {
	p := planned(t, "")
	if !slices.Equal(p.paths, []string{"loop", "pair"}) || p.count != 1 || !p.verify || p.syscalls ||
		p.warmUp != standardWarmUp ||
		p.amount != (load.Amount{Time: standardTime}) || p.opts.Processes != 1 || len(p.leftOut) != 0 {
		t.Errorf("%+v", p)
	}
	var got []load.Spec
	for _, size := range []int{64, 64 << 10, 1 << 20} {
		for _, op := range []load.Op{load.Write, load.Read, load.Send} {
			s := load.Spec{Op: op, Size: size, Depth: 16, QPs: 1, Pattern: load.Stream, Wait: load.Adaptive}
			if size == 64 {
				s.Depth = 1
				if op != load.Read {
					s.Pattern = load.PingPong
				}
			}
			got = append(got, s)
		}
	}
	if !slices.Equal(p.specs, got) {
		t.Errorf("%+v", p.specs)
	}
}

// Each flag changes what it is for.
func TestPlanFlags(t *testing.T) {
	specs := func(f func(load.Spec) bool) func(plan) bool {
		return func(p plan) bool {
			return len(p.specs) > 0 && !slices.ContainsFunc(p.specs, func(s load.Spec) bool { return !f(s) })
		}
	}
	for args, ok := range map[string]func(plan) bool{
		"--path ring,tap --path wire": func(p plan) bool {
			return slices.Equal(p.paths, []string{"ring", "tap", "wire"})
		},
		"--op all": func(p plan) bool { return len(p.specs) == 4*3+2 }, // atomics once
		"--op send,fetch-add --size 64,128": func(p plan) bool {
			return len(p.specs) == 3 && p.specs[1].Op == load.FetchAdd && p.specs[1].Size == 8
		},
		"--op cmp-swap --size 8": specs(func(s load.Spec) bool {
			return s.Op == load.CompareSwap && s.Size == 8 && s.Depth == 1
		}),
		"--op write --size 1k": specs(func(s load.Spec) bool {
			return s.Op == load.Write && s.Size == 1024 && s.Depth == 1 && s.Pattern == load.PingPong
		}),
		"--op write --size 8..64": func(p plan) bool {
			return len(p.specs) == 4 && p.specs[3].Size == 64
		},
		"--depth 3": specs(func(s load.Spec) bool {
			return s.Depth == 3 && s.Pattern == load.Stream
		}),
		"--op send --depth 1..64*4": func(p plan) bool {
			return len(p.specs) == 3*4 && p.specs[3].Depth == 64
		},
		"--qps 5 --size 64": specs(func(s load.Spec) bool { return s.QPs == 5 }),
		"--op read --qps 1..9+4": func(p plan) bool {
			return len(p.specs) == 3*3 && p.specs[8].QPs == 9
		},
		"--processes 4": func(p plan) bool {
			return p.opts.Processes == 4 && slices.Equal(p.paths, []string{"ring"})
		},
		"--processes 0 --path tap": func(p plan) bool { return p.opts.Processes == 0 },
		"--pattern stream --size 64": specs(func(s load.Spec) bool {
			return s.Pattern == load.Stream && s.Depth == 1
		}),
		"--bidir":      specs(func(s load.Spec) bool { return s.Bidir && s.Pattern == load.Stream }),
		"--wait poll":  specs(func(s load.Spec) bool { return s.Wait == load.Poll }),
		"--wait event": func(p plan) bool { return len(p.specs) == 8 && len(p.leftOut) == 1 },
		"--pattern pingpong --depth 1": func(p plan) bool {
			return len(p.specs) == 6 && len(p.leftOut) == 3 && strings.Contains(p.leftOut[0], "read")
		},
		"--sctp": func(p plan) bool {
			return slices.Equal(p.paths, []string{"pair"}) && p.specs[0].SCTP
		},
		"--sctp --path wire": func(p plan) bool {
			return slices.Equal(p.paths, []string{"wire"}) && p.specs[0].SCTP
		},
		"--roce": func(p plan) bool {
			return slices.Equal(p.paths, []string{"pair"}) && p.opts.RoCE && p.specs[0].RoCE
		},
		"--mtu 9000 --path wire,tap": func(p plan) bool { return p.opts.MTU == 9000 },
		"--no-crc":                   specs(func(s load.Spec) bool { return s.NoCRC }),
		"--mtu 9000": func(p plan) bool {
			return p.opts.MTU == 9000 && slices.Equal(p.paths, []string{"pair"})
		},
		"--time 3s": func(p plan) bool {
			return p.amount == load.Amount{Time: 3 * time.Second}
		},
		"--messages 7": func(p plan) bool {
			return p.amount == load.Amount{Messages: 7} && p.warmUp == 0
		},
		"--messages 7 --warmup 1s": func(p plan) bool { return p.warmUp == time.Second },
		"--count 3 --time 1s --warmup 1s --path pair --op write --size 64": func(p plan) bool {
			return p.length() == 6*time.Second
		},
		"--no-verify":      func(p plan) bool { return !p.verify },
		"--syscalls":       func(p plan) bool { return p.syscalls },
		"--vrnic /x/vrnic": func(p plan) bool { return p.opts.Vrnic == "/x/vrnic" },
	} {
		if p := planned(t, args); !ok(p) {
			t.Errorf("%q: %+v", args, p)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int{"8": 8, "64k": 65536, "1M": 1 << 20, "64M": 64 << 20} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "k", "-1", "65M", "1kk", "9999999999999999999999", "1.5k"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d", in, got)
		}
	}
}

func TestParseRange(t *testing.T) {
	for in, want := range map[string][]int{
		"8": {8}, "8..64": {8, 16, 32, 64}, "8..63": {8, 16, 32}, "1k..1M*32": {1024, 32768, 1 << 20},
		"8..24+8": {8, 16, 24}, "5..5": {5},
		"8..1k+504": {8, 512, 1016},
	} {
		if got, err := parseRange(in, parseSize); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "..", "8..", "..8", "8..4", "0..4", "8..16*", "8..16*1", "8..16+0",
		"1..64M+1", "8..16*2*2", "8...16"} {
		if got, err := parseRange(in, parseSize); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}
