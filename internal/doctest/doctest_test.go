package doctest

import (
	"errors"
	"reflect"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestLines(t *testing.T) {
	const text = "Try `fly up --far 7` or `fly\nhome`; `flying high` is another.\n\n" +
		"    PATH=bin fly up \\\n        --far 8 -- crash --now & sleep 1\n" +
		"    bin/fly home    # at last\n    make    # fly alone\n\n```sh\nfly away\n```\n" +
		"    $ fly south\n    fly is on its way\n    $ fly north\n    fly: ice\n\n    fly east\n"
	want := [][]string{{"up", "--far", "8"}, {"home"}, {"south"}, {"north"}, {"east"},
		{"up", "--far", "7"}, {"home"}}
	if got := lines(text, "fly"); !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWrong(t *testing.T) {
	app := &cli.App{Name: "fly", Flags: []cli.Flag{&cli.BoolFlag{Name: "v"}},
		Commands: []*cli.Command{
			{Name: "up", Flags: []cli.Flag{&cli.StringFlag{Name: "far", Aliases: []string{"f"}}}},
			{Name: "show", Subcommands: []*cli.Command{{Name: "wings"}}},
			{Name: "bend", ArgsUsage: "WHAT", Subcommands: []*cli.Command{{Name: "off"}}},
		}}
	parse := map[string]func(string) error{"far": func(s string) error {
		if s != "8" && s != "wings" {
			return errors.New("not far")
		}
		return nil
	}}
	for _, tt := range []struct {
		words []string
		want  string
	}{
		{[]string{"-v", "up", "--far", "wings"}, ""},
		{[]string{"up", "-f=8", "somewhere"}, ""},
		{[]string{"show", "wings"}, ""},
		{[]string{"show", "WHAT"}, ""},
		{[]string{"show"}, ""},
		{[]string{"down"}, "there is no command down"},
		{[]string{"show", "tail"}, "there is no command tail"},
		{[]string{"up", "-v"}, "there is no option -v"},
		{[]string{"bend", "off", "-v"}, "there is no option -v"},
		{[]string{"bend", "-v"}, "there is no option -v"},
		{[]string{"bend", "a", "wing"}, ""},
		{[]string{"up", "--fast"}, "there is no option --fast"},
		{[]string{"up", "--far", "FAR"}, ""},
		{[]string{"up", "--far", "near"}, `"near" of --far: not far`},
		{[]string{"up", "--far=near"}, `"near" of --far: not far`},
		{[]string{"up", "--far"}, `"" of --far: not far`},
	} {
		if got := wrong(app, tt.words, parse); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.words, got, tt.want)
		}
	}
}
