// Package cpuprofile is the --cpuprofile of the programs.
package cpuprofile

import (
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/urfave/cli/v2"
)

// Name is the flag's.
const Name = "cpuprofile"

// Flag is --cpuprofile, which names the file that Start writes.
func Flag() cli.Flag {
	return &cli.StringFlag{Name: Name, EnvVars: []string{"VRNIC_CPUPROFILE"},
		Usage: "write a CPU profile of this process to `FILE`; a * in its name becomes a number"}
}

// Start profiles this process, unless path is "", until stop is called, which writes that file. The
// file is there when Start returns.
func Start(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}

func create(path string) (*os.File, error) {
	if base := filepath.Base(path); strings.Contains(base, "*") {
		return os.CreateTemp(filepath.Dir(path), base)
	}
	return os.Create(path)
}
