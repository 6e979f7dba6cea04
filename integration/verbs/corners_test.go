package verbs

import (
	"slices"
	"testing"
)

// The connection manager where programs seldom go.
func TestCorners(t *testing.T) {
	inOneDaemon(t, func(t *testing.T, top *topology) {
		top.runC(t, "corners", "datagrams", "readers", "channel_with_reader", "migration_waits",
			"synchronous_nonblocking",
			"listener_goes_first", "unbound_listener", "loopback", "names", "options", "infiniband",
			"connect_data", "many")
	})
}

// A program that is given one of two devices cannot use the other, but reaches it.
func TestOneDeviceOfTwo(t *testing.T) {
	top := twoDevices(t)
	env := []string{"VT_SERVER=" + top.server.addrs[0], "VT_CLIENT=" + top.client.addrs[0],
		"VRNIC_DEVICE=" + top.client.dev}
	top.client.in(t).startEnv(env, cProgram(t, "corners"), "one_device").succeed(cLimit,
		"^ok one_device$")
}

// VRNIC_CM sets the ways of iWARP for programs that know nothing of them, or says what it does not
// understand.
func TestEnvironmentOfIDs(t *testing.T) {
	top := twoDevices(t)
	for _, set := range []string{
		"transport=sctp", "mpa=1", "crc=required,rtr=write+read", "crc=off,fpdu=1400", "markers=on",
		"rtr=client-server,extensions=off,reads=4:4",
	} {
		t.Run(set, func(t *testing.T) {
			// The client is who speaks first: what it asks for is what comes about.
			env := slices.Concat([]string{"VRNIC_CM=" + set, "VT_SERVER=" + top.server.addrs[0],
				"VT_CLIENT=" + top.client.addrs[0]})
			top.server.in(t).startEnv(env, cProgram(t, "cm"), "synchronous").succeed(cLimit,
				"^ok synchronous$")
			top.server.in(t).settle()
		})
	}
	for _, set := range []string{"crc=perhaps", "colour=red", "mpa", "mpa=3", "fpdu=1"} {
		env := []string{"VRNIC_CM=" + set}
		top.server.in(t).startEnv(env, cProgram(t, "corners"), "bad_environment").succeed(cLimit,
			"^ok bad_environment$", "VRNIC_CM")
	}
}
