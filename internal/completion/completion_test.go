package completion

import (
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/internal/needtest"
)

func testApp() *cli.App {
	device := &cli.StringFlag{Name: "device", Aliases: []string{"d"}, Usage: "of `DEVICE` only"}
	return &cli.App{Name: "a-program", Writer: io.Discard, Commands: []*cli.Command{
		{Name: "show", Usage: "list", Flags: []cli.Flag{device, &cli.BoolFlag{Name: "json"}},
			Subcommands: []*cli.Command{{Name: "qp"}, {Name: "qps", Hidden: true}, {Name: "cq",
				Flags: []cli.Flag{device, &cli.StringSliceFlag{Name: "each"},
					&cli.StringFlag{Name: "old", Hidden: true}}}}},
		{Name: "shut", Usage: "close"},
		{Name: "exec", Flags: []cli.Flag{device, &cli.StringFlag{Name: "file", Usage: "read `FILE`"}}},
	}}
}

func values(name string) []string {
	if name == "DEVICE" {
		return []string{"vrnic0", "vrnic1", "other"}
	}
	return nil
}

func TestNext(t *testing.T) {
	for _, tt := range []struct{ words, want string }{
		{"", "show shut exec"},
		{"sh", "show shut"},
		{"x", ""},
		{"show ", "qp cq"},
		{"show q", "qp"},
		{"show -", "--device --json --help"},
		{"show --json -", "--device --help"},
		{"show -d vrnic0 -", "--json --help"},
		{"show --device=vrnic0 --j", "--json"},
		{"show --device v", "vrnic0 vrnic1"},
		{"show -d ", "vrnic0 vrnic1 other"},
		{"show --device =", "vrnic0 vrnic1 other"}, // as bash breaks --device=
		{"show --device = o", "other"},
		{"show cq --each 1 --e", "--each"}, // which may come again
		{"show cq --o", ""},
		{"show --unknown q", "qp"},
		{"exec --file ", ""},
		{"exec -d vrnic0 ", ""},
		{"exec -- sh", ""},
		{"exec -- --d", ""},
	} {
		var got []string
		words := strings.Split(tt.words, " ")
		if tt.words == "" {
			words = nil
		}
		for _, c := range Next(testApp(), values, words) {
			got = append(got, c.Text)
		}
		if !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%q: %q, want %q", tt.words, got, tt.want)
		}
	}
}

// The scripts are ones that their shells take.
func TestScripts(t *testing.T) {
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) {
			var script strings.Builder
			if err := Script(&script, "a-program", shell); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(script.String(), "PROGRAM") || !strings.Contains(script.String(),
				"a_program") {
				t.Errorf("%s", script.String())
			}
			path, err := exec.LookPath(shell)
			if err != nil && shell == "bash" {
				t.Fatal(err)
			} else if err != nil {
				needtest.Skip(t, "no "+shell+" is installed")
			}
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
