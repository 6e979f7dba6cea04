package main

import (
	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/internal/completion"
	"github.com/vrnic/vrnic/internal/manual"
	"github.com/vrnic/vrnic/shm"
)

// shellCommands are what packages and shells ask of the program.
func shellCommands() []*cli.Command {
	return append(completion.Commands("vrnic", completions), pages.Command())
}

// completions are what the value called name in help may be.
func completions(name string) []string {
	if name != "DEVICE" {
		return nil
	}
	c, err := shm.Dial(shm.DefaultSocket())
	if err != nil {
		return nil // no daemon, no devices
	}
	defer c.Close()
	return c.Devices()
}

var pages = manual.Manual{
	Environment: [][2]string{
		{"VRNIC_SOCKET", "the daemon's control socket; --socket goes before it"},
		{"VRNIC_DEVICE", "for programs that vrnic exec runs: the only device that they are shown"},
		{"VRNIC_LEND_HEAP", "as vrnic exec --lend-heap"},
		{"VRNIC_SYS", "as vrnic exec --sys"},
		{"VRNIC_LIB_DIR", "where libibverbs.so.1 and librdmacm.so.1 of vrnic are, in place of those " +
			"that the program carries"},
	},
	Files: [][2]string{
		{"$XDG_RUNTIME_DIR/vrnic.sock, /run/vrnic.sock", "the control socket, if nothing else is said"},
	},
}
