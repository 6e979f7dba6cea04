// Package porttest has ports in memory for tests: a Port whose link is a channel, a Wire between
// two switches, and a Path that is a bad network: a Schedule with a seed says which frames it
// loses, doubles and brings late, and a Clock on which waiting takes no time is what both the Path
// and the stacks run by.
//
//	clock := porttest.NewClock(t)
//	porttest.Path(t, sw1, sw2, clock, porttest.Schedule{Seed: 1, Loss: 0.01, Delay: time.Second})
//	s1, err := netstack.NewStack(sw1, netstack.Config{Name: "vrnic1", Clock: clock})
package porttest
