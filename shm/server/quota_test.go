package server

import "testing"

func TestLimitsSet(t *testing.T) {
	l := DefaultLimits()
	// What a small machine has, at least.
	if l.PDs != 16384 || l.MRs != 1<<18 || l.Mems != 4096 || l.MemBytes < 4<<30 || l.CQs != 32768 ||
		l.QPs != 16384 || l.Channels != 16384 || l.CMChannels != 16384 || l.CMIDs != 65536 ||
		l.CMEvents != 4096 || l.Depth != 32768 || l.CQDepth != 1<<19 || l.RingBytes < 256<<20 ||
		l.SessionsPerUID < 64 || l.Sessions < 256 || l.Sessions > 4096 || l.HelloMS != 5000 ||
		l.Regions < 1<<17 {
		t.Errorf("defaults %+v", l)
	}
	seen := map[string]bool{}
	for i := range LimitTable {
		in := &LimitTable[i]
		if seen[in.Name] || in.Help == "" || l.Get(in) != in.Default {
			t.Errorf("limit %q", in.Name)
		}
		seen[in.Name] = true
		if err := l.Set(in.Name + "=3"); err != nil || l.Get(in) != 3 {
			t.Errorf("%s=3: %v, %d", in.Name, err, l.Get(in))
		}
	}
	for _, bad := range []string{"", "qps", "qps=", "qps=0", "qps=-1", "qps=x", "cqs=1048577",
		"nosuch=1"} {
		if err := l.Set(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
