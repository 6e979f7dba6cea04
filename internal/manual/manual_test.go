package manual

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/internal/needtest"
)

// Each command has its page, and man takes them without a warning, whatever is in the texts.
func TestWrite(t *testing.T) {
	flag := &cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "write to `FILE`, a\\b 'c'"}
	app := &cli.App{Name: "prog", Usage: "does \"things\"", UsageText: "prog COMMAND",
		Description: ".not a request\n\n   as it is  -x\n   'quoted'\n\nA paragraph again.",
		Commands: []*cli.Command{
			{Name: "do", Usage: "do", Flags: []cli.Flag{flag, &cli.BoolFlag{Name: "h2", Hidden: true}},
				Subcommands: []*cli.Command{{Name: "twice", Usage: "do it again",
					UsageText: "prog do twice"}}},
			{Name: "secret", Hidden: true}, {Name: "help"},
		}}
	dir := t.TempDir()
	m := Manual{Files: [][2]string{{"/etc/prog", "what it reads"}}}
	if err := m.Write(app, dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 || files[0].Name() != "prog-do.1" || files[1].Name() != "prog.1" {
		t.Fatalf("%v, %v", files, err)
	}
	if _, err := exec.LookPath("man"); err != nil {
		needtest.Skip(t, "no man is installed")
	}
	for name, words := range map[string][]string{
		"prog.1": {"\n       .not a request\n", "\n          as it is  -x\n", "'quoted'", "prog-do(1)",
			"/etc/prog", "A paragraph again."},
		"prog-do.1": {"--out FILE, -o FILE", `write to FILE, a\b 'c'`, "TWICE", "prog do twice",
			"prog(1)"},
	} {
		var out, errs strings.Builder
		cmd := exec.Command("man", "--warnings", "-l", filepath.Join(dir, name))
		cmd.Env = append(os.Environ(), "MANWIDTH=80", "LC_ALL=C", "MAN_KEEP_FORMATTING=")
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 {
			t.Errorf("%s: %v: %s", name, err, errs.String())
		}
		for _, w := range words {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s has no %q:\n%s", name, w, out.String())
			}
		}
		if strings.Contains(out.String(), "h2") || strings.Contains(out.String(), "secret") {
			t.Errorf("%s shows what is hidden", name)
		}
	}
}
